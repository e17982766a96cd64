"""What a pipeline is given, and how parameters that it doesn't know are refused."""

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from fastapi import Request

from bertsmith.serving.protocols.routing import ask
from bertsmith.serving.refusals import InvalidRequest, Unsupported
from bertsmith.serving.served_model import ServedModel
from bertsmith.serving.service import Answer, Service


@dataclass(frozen=True)
class Asked:
    """`inputs` and `parameters` as they were sent, null left away; a list is answered by a list."""

    service: Service
    request: Request
    model: ServedModel
    inputs: Any
    parameters: Mapping[str, Any] = field(default_factory=dict)

    @property
    def one(self) -> bool:
        """Whether the inputs are one input."""
        return not isinstance(self.inputs, list)

    def listed(self) -> list[Any]:
        """The inputs as a list."""
        return [self.inputs] if self.one else self.inputs

    async def answer(self, inputs: list[Any], operation: str, **more: Any) -> Answer:
        """The service's. Raises Refusal."""
        return await ask(self.service, self.request, inputs, self.model.name, operation, **more)

    def require_known(self, known: Collection[str]) -> None:
        """Raises Unsupported for a parameter that would be ignored."""
        if unknown := sorted(set(self.parameters) - set(known)):
            raise Unsupported(
                f"The parameter {unknown[0][:80]!r} isn't done here. "
                f"There are: {', '.join(sorted(known)) or 'none'}."
            )

    def whole_number(self, name: str, least: int = 1) -> int | None:
        """A parameter. Raises InvalidRequest for anything else."""
        value = self.parameters.get(name)
        if value is not None and (type(value) is not int or value < least):
            raise InvalidRequest(f"{name} must be a whole number from {least}, found {str(value)[:80]!r}.")
        return value

    def flag(self, name: str) -> bool | None:
        """A parameter. Raises InvalidRequest for anything else."""
        value = self.parameters.get(name)
        if value is not None and type(value) is not bool:
            raise InvalidRequest(f"{name} must be true or false, found {str(value)[:80]!r}.")
        return value

    def texts(self, name: str) -> list[str] | None:
        """A list of texts. Raises InvalidRequest for anything else."""
        value = self.parameters.get(name)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise InvalidRequest(f"{name} must be a list of texts, found {str(value)[:80]!r}.")
        return value


Pipeline = Callable[[Asked], Awaitable[tuple[Any, Answer]]]
