"""What a function's signature and docstring say to a model: names, types, descriptions.

`read` turns a function into a `Signature`, or refuses it with a `ToolDefinitionError` that names
the function, the parameter and what to write instead. The schema is the same in every process: it
follows the order of the parameters and of nothing else. Validation is pydantic's.
"""

import inspect
import typing
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, get_args

import docstring_parser
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaWarningKind

from rejoinder.core.parts import Json
from rejoinder.tools.context import ToolContext

_SHOWN = 80


class ToolDefinitionError(TypeError):
    """A function cannot be a tool as it stands; the message says what to change."""


class ArgumentsError(ValueError):
    """The model's arguments do not fit; the message is for the model."""


@dataclass(frozen=True)
class Signature:
    """A function as a tool."""

    description: str
    schema: Mapping[str, Json]
    arguments: type[BaseModel]
    context: str | None
    """The parameter that wants the `ToolContext`."""
    returns_nothing: bool
    """Declared `-> None`, or not declared at all."""

    def check(self, tool: str, arguments: Mapping[str, Json]) -> dict[str, Any]:
        """The function's keyword arguments, or an `ArgumentsError` that names each bad field.

        What the model left out is left out here too: a default stays the function's own.
        """
        try:
            model = self.arguments.model_validate(dict(arguments))
        except ValidationError as error:
            raise ArgumentsError(self._explain(tool, error)) from error
        fields = self.arguments.model_fields
        return {str(fields[name].alias): getattr(model, name) for name in model.model_fields_set}

    def _explain(self, tool: str, error: ValidationError) -> str:
        names = ", ".join(str(field.alias) for field in self.arguments.model_fields.values())
        lines = [f"The arguments of {tool} are not valid; nothing was run."]
        for found in error.errors(include_url=False, include_context=False):
            where = _path(found["loc"])
            if found["type"] == "extra_forbidden" and len(found["loc"]) == 1:
                lines.append(f"- {where}: there is no such argument; there are: {names or 'none'}")
            elif found["type"] == "missing":
                lines.append(f"- {where}: is required and missing")
            else:
                lines.append(f"- {where}: {found['msg']} (got {_brief(found['input'])})")
        return "\n".join(lines)


class _Schema(GenerateJsonSchema):
    """Without the titles that pydantic makes up: they say nothing and cost tokens."""

    ignored_warning_kinds: set[JsonSchemaWarningKind] = {  # noqa: RUF012  # as pydantic has it
        "skipped-choice",
        "non-serializable-default",
    }

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002  # pydantic's
        """Never."""
        return False


def read(function: Callable[..., Any], names: Mapping[str, Any]) -> Signature:
    """Read a function. `names`: what is visible where it is defined, for its annotations."""
    where = getattr(function, "__qualname__", repr(function))
    if not (inspect.isfunction(function) or inspect.ismethod(function)):
        raise ToolDefinitionError(f"{where} is not a function: @tool goes on a function or method")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ToolDefinitionError(
            f"{where} is a generator: return one value, and tell what happens on the way with"
            " ToolContext.progress"
        )
    hints = _hints(function, names, where)
    document = docstring_parser.parse(inspect.getdoc(function) or "")
    said = {param.arg_name: param.description or "" for param in document.params}
    context = None
    fields: dict[str, Any] = {}
    for parameter in inspect.signature(function).parameters.values():
        _check_parameter(parameter, hints, where)
        hint = hints[parameter.name]
        if hint is ToolContext or ToolContext in get_args(hint):
            if context is not None:
                raise ToolDefinitionError(f"{where} asks for two ToolContexts: one is enough")
            context = parameter.name
            continue
        # Fields are named by position, with the parameter as their alias: a parameter may have
        # a name that pydantic keeps for itself ("schema", "copy", "_private").
        fields[f"argument_{len(fields)}"] = _field(parameter, hint, said.get(parameter.name))
    arguments = _model(function.__name__, fields, where)
    return Signature(
        description=_description(document, function.__name__),
        schema=_json_schema(arguments, where),
        arguments=arguments,
        context=context,
        returns_nothing=hints.get("return", type(None)) is type(None),
    )


def _hints(function: Callable[..., Any], names: Mapping[str, Any], where: str) -> dict[str, Any]:
    # ToolContext is often imported for type checkers only: it is known all the same.
    scope = {"ToolContext": ToolContext, **getattr(function, "__globals__", {})}
    try:
        return typing.get_type_hints(function, scope, dict(names), include_extras=True)
    except NameError as error:
        raise ToolDefinitionError(
            f"{where}: the type {error.name!r} in its signature is not known at run time; import it"
            " outside `if TYPE_CHECKING:`"
        ) from error
    except Exception as error:
        raise ToolDefinitionError(f"{where}: its type hints cannot be read: {error}") from error


def _check_parameter(parameter: inspect.Parameter, hints: Mapping[str, Any], where: str) -> None:
    name = parameter.name
    match parameter.kind:
        case inspect.Parameter.POSITIONAL_ONLY:
            raise ToolDefinitionError(
                f"{where}: the parameter {name!r} is positional-only, but a model gives arguments"
                " by name; remove the '/'"
            )
        case inspect.Parameter.VAR_POSITIONAL:
            raise ToolDefinitionError(
                f"{where}: *{name} has no schema; take a list, e.g. {name}: list[str]"
            )
        case inspect.Parameter.VAR_KEYWORD:
            raise ToolDefinitionError(
                f"{where}: **{name} has no schema; name the parameters, or take a dict"
            )
    if name not in hints:
        raise ToolDefinitionError(
            f"{where}: the parameter {name!r} has no type hint; write e.g. {name}: str"
        )
    if isinstance(parameter.default, FieldInfo):
        raise ToolDefinitionError(
            f"{where}: the default of {name!r} is a pydantic Field, which the function would get as"
            f" a value; write {name}: Annotated[…, Field(…)]"
        )


def _field(parameter: inspect.Parameter, hint: object, said: str | None) -> tuple[Any, Any]:
    if said and not _described(hint):
        hint = Annotated[hint, Field(description=" ".join(said.split()))]
    default = ... if parameter.default is inspect.Parameter.empty else parameter.default
    return hint, Field(default, alias=parameter.name)


def _described(hint: object) -> bool:
    return any(getattr(extra, "description", None) for extra in getattr(hint, "__metadata__", ()))


def _model(name: str, fields: dict[str, Any], where: str) -> type[BaseModel]:
    config = ConfigDict(extra="forbid", arbitrary_types_allowed=False)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return create_model(name, __config__=config, **fields)
    except Exception as error:
        raise ToolDefinitionError(f"{where}: no schema for its parameters: {error}") from error


def _json_schema(arguments: type[BaseModel], where: str) -> Mapping[str, Json]:
    try:
        schema = arguments.model_json_schema(by_alias=True, schema_generator=_Schema)
    except Exception as error:
        raise ToolDefinitionError(f"{where}: no schema for its parameters: {error}") from error
    schema.pop("title", None)
    schema.setdefault("properties", {})  # providers refuse null, and some refuse an absence
    schema.setdefault("required", [])
    return schema


def _description(document: docstring_parser.Docstring, name: str) -> str:
    paragraphs = [document.short_description, document.long_description]
    return "\n\n".join(text for text in paragraphs if text) or name.replace("_", " ").strip()


def _path(loc: tuple[int | str, ...]) -> str:
    path = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in loc)
    return path.removeprefix(".") or "arguments"


def _brief(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"
