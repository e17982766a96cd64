// Requests to the service this page came from, and to no other.

const KEY = "bertsmith.key";

/** What the service refused, in its own sentence. */
export class Refused extends Error {
  constructor(status, sentence) {
    super(sentence);
    this.status = status;
  }
}

export const key = () => sessionStorage.getItem(KEY);
export const keep = (given) => sessionStorage.setItem(KEY, given);

/** {data, headers, ms}. Throws Refused, or an AbortError for what was cancelled. */
export async function ask(path, body, signal) {
  const headers = body === undefined ? {} : { "content-type": "application/json" };
  if (key()) headers.authorization = `Bearer ${key()}`;
  const began = performance.now();
  let response;
  try {
    response = await fetch(path, {
      method: body === undefined ? "GET" : "POST",
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      signal,
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused(0, "The service can’t be reached. Is it still running?");
  }
  const data = await response.json().catch((error) => {
    if (error.name === "AbortError") throw error;
    return null;
  });
  if (!response.ok || data === null) {
    const sentence = data?.error?.message ?? `The service answered with status ${response.status}.`;
    throw new Refused(response.status, sentence);
  }
  return { data, headers: response.headers, ms: performance.now() - began };
}
