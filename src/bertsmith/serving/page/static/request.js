// Requests to the service that this page came from, and to no other.

/** The service's own address, whatever prefix a proxy offers it under: this file is PREFIX/page/static/request.js. */
export const SERVICE = new URL("../../", import.meta.url);

const KEY = `bertsmith.key ${SERVICE.pathname}`; // not for another service below the same host

/** The path of a model, in which a slash of its name stays one. */
export const modelPath = (name) => `v1/${name.split("/").map(encodeURIComponent).join("/")}`;

/** An error answered by the service, with its status and its sentence. */
export class RequestError extends Error {
  constructor(status, sentence) {
    super(sentence);
    this.status = status;
  }
}

export const key = () => sessionStorage.getItem(KEY);
export const keep = (value) => sessionStorage.setItem(KEY, value);

/** `path` is relative to the service. Returns {data, headers, ms}. Throws RequestError, or an AbortError if the request was cancelled. */
export async function ask(path, body, signal) {
  const headers = body === undefined ? {} : { "content-type": "application/json" };
  if (key()) headers.authorization = `Bearer ${key()}`;
  const began = performance.now();
  let response;
  try {
    response = await fetch(new URL(path, SERVICE), {
      method: body === undefined ? "GET" : "POST",
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      signal,
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new RequestError(0, "The service can’t be reached. Is it still running?");
  }
  const data = await response.json().catch((error) => {
    if (error.name === "AbortError") throw error;
    return null;
  });
  if (!response.ok || data === null) {
    const sentence = data?.error?.message ?? `The service answered with status ${response.status}.`;
    throw new RequestError(response.status, sentence);
  }
  return { data, headers: response.headers, ms: performance.now() - began };
}
