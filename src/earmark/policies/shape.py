"""The shape of a policies file: every field, what it may hold, and what is said where it holds something else.

Nothing is taken for what it might have meant: a number is no text, a text no number, and a field that nobody knows
is a mistake, since a misspelt limit would be no limit (B48).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Final, LiteralString, NoReturn

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    PrivateAttr,
    WithJsonSchema,
    model_validator,
)
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import PydanticCustomError, core_schema

from earmark.amounts import MAX_AMOUNT
from earmark.limits import (
    DAY,
    HOUR,
    MAX_KEY_BYTES,
    MICROSECONDS,
    MINUTE,
    SECOND,
    Algorithm,
    Limit,
    Limits,
    check_key,
    to_microseconds,
)
from earmark.policies.matching import Matcher
from earmark.policies.mistakes import shown

WINDOWS: Final = {"second": SECOND, "minute": MINUTE, "hour": HOUR, "day": DAY}
IDS: Final = r"[A-Za-z0-9._-]+"

_ID: Final = re.compile(IDS)


def refuse(kind: LiteralString, problem: str, remedy: str) -> NoReturn:
    """Raise what tells pydantic of a mistake."""
    # As values, not as the template: what they quote may have braces in it.
    raise PydanticCustomError(kind, "{problem}", {"problem": problem, "remedy": remedy})


def _text(word: LiteralString, remedy: str) -> Callable[[str], str]:
    """Check a text that something is known by: neither empty, nor padded, nor too long for a key."""

    def check(text: str) -> str:
        if not text.strip():
            refuse(f"empty_{word}", "is empty", remedy)
        if text != text.strip():
            refuse(
                f"padded_{word}",
                f"has blanks round it: {shown(text)}",
                f"write {shown(text.strip())}",
            )
        try:
            return check_key(word, text)
        except ValueError as error:
            refuse(f"long_{word}", str(error), "choose a shorter one")

    return check


def _id(text: str) -> str:
    if not _ID.fullmatch(text):
        refuse(
            "bad_id",
            f"is no id: {shown(text)}",
            "use letters, digits, '.', '_' and '-' alone, at least one of them",
        )
    return _text("id", "")(text)


def _matcher(value: object) -> Matcher:
    if not isinstance(value, str):
        refuse("not_text", f"is {shown(value)}, not a text", "write a model's name, in quotes")
    prefix = value.endswith("*")
    text = _text("matcher", "name a model, or the beginning of names with a star: gpt-4*")(
        value[:-1] if prefix else value
    )
    if "*" in text:
        refuse(
            "bad_matcher",
            f"has a star that is not its end: {shown(value)}",
            "a star stands for the rest of a name: write one, as the last character",
        )
    return Matcher(text, prefix)


def _window(value: object) -> float:
    if isinstance(value, str) and value in WINDOWS:
        return WINDOWS[value]
    try:
        to_microseconds("window", value)
    except ValueError:
        refuse(
            "unknown_window",
            f"is no window: {shown(value)}",
            f"write {', '.join(WINDOWS)}, or a number of seconds above 0",
        )
    assert isinstance(value, (int, float))  # noqa: S101 - what `to_microseconds` takes
    return value


def _not_empty(value: object) -> object:
    """None is what a field has that is left out; one that is left empty has been forgotten, and would be no limit."""
    if value is None:
        refuse("left_empty", "is left empty", "write something, or leave the field out for none")
    return value


def _names(value: object) -> object:
    return [value] if isinstance(value, str) else value


# What the JSON schema says of a text that something is known by.
_TEXT: Final[dict[str, Any]] = {
    "type": "string",
    "pattern": r"^\S([\s\S]*\S)?$",
    "maxLength": MAX_KEY_BYTES,
}
_UNPADDED: Final = WithJsonSchema(_TEXT)

Amount = Annotated[int, Field(ge=0, le=MAX_AMOUNT)]
Id = Annotated[str, AfterValidator(_id), WithJsonSchema({**_TEXT, "pattern": f"^{IDS}$"})]
Key = Annotated[str, AfterValidator(_text("key", "write the tenant's key")), _UNPADDED]
Name = Annotated[str, AfterValidator(_text("name", "write a name")), _UNPADDED]
Model = Annotated[str, AfterValidator(_text("model", "write a model's name")), _UNPADDED]
Match = Annotated[
    Matcher,
    PlainValidator(_matcher),
    WithJsonSchema({**_TEXT, "pattern": r"^[^*\s]([^*]*[^*\s])?\*?$"}),
]
Window = Annotated[
    float,
    PlainValidator(_window),
    WithJsonSchema(
        {"anyOf": [{"enum": list(WINDOWS)}, {"type": "number", "minimum": 1 / MICROSECONDS}]},
    ),
]
By = Annotated[
    list[Name],
    BeforeValidator(_names),
    WithJsonSchema(
        {"anyOf": [_TEXT, {"type": "array", "items": _TEXT, "uniqueItems": True}]},
    ),
]
_NOT_EMPTY: Final = BeforeValidator(_not_empty)
MaybeAmount = Annotated[Amount | None, _NOT_EMPTY]
MaybeId = Annotated[Id | None, _NOT_EMPTY]
MaybeMatch = Annotated[Match | None, _NOT_EMPTY]


class Part(BaseModel):
    """A mapping of the file, in which every field is known."""

    model_config = ConfigDict(extra="forbid", strict=True, use_attribute_docstrings=True)

    what: ClassVar[str]
    """What it is called in messages."""


class LimitPart(Part):
    """A limit of any metric and window."""

    what = "a limit"

    metric: Name
    """`requests`, `tokens`, `input_tokens`, `output_tokens`, `uncached_tokens`, or a name of your own."""
    amount: Amount
    """Units per window; 0 admits nothing."""
    window: Window
    """`second`, `minute`, `hour`, `day`, or a number of seconds."""
    algorithm: Algorithm = "fixed_window"
    """How the window moves."""
    burst: MaybeAmount = None
    """The capacity of a token bucket; by default the amount."""

    _made: Limit = PrivateAttr()

    @model_validator(mode="after")
    def _make(self) -> LimitPart:
        try:
            self._made = Limit(self.metric, self.amount, self.window, self.algorithm, self.burst)
        except ValueError as error:
            refuse("bad_limit", str(error), "leave out what does not go together")
        return self

    @property
    def made(self) -> Limit:
        """The limit."""
        return self._made


class LimitsPart(Part):
    """Limits by their usual names; `{}` is no limit."""

    what = "limits"

    rps: MaybeAmount = None
    """Requests per second."""
    rpm: MaybeAmount = None
    """Requests per minute."""
    rph: MaybeAmount = None
    """Requests per hour."""
    rpd: MaybeAmount = None
    """Requests per day."""
    tpm: MaybeAmount = None
    """Tokens per minute."""
    tph: MaybeAmount = None
    """Tokens per hour."""
    tpd: MaybeAmount = None
    """Tokens per day."""
    itpm: MaybeAmount = None
    """Input tokens per minute."""
    otpm: MaybeAmount = None
    """Output tokens per minute."""
    concurrency: MaybeAmount = None
    """Requests in flight."""
    algorithm: Algorithm = "fixed_window"
    """How the windows of all of these move."""
    also: list[LimitPart] = Field(default_factory=list[LimitPart])
    """Further limits, of any metric and window."""

    @model_validator(mode="after")
    def _make(self) -> LimitsPart:
        try:
            _ = self.made
        except ValueError as error:
            refuse("duplicate_limit", str(error), "keep one of the two")
        return self

    @property
    def made(self) -> Limits:
        """The limits."""
        amounts = tuple(map(self.__dict__.get, _USUAL))
        return _limits(amounts, self.algorithm, tuple(part.made for part in self.also))


_USUAL: Final = ("rps", "rpm", "rph", "rpd", "tpm", "tph", "tpd", "itpm", "otpm", "concurrency")


# A thousand tenants have a handful of limits among them, which are made once, and looked up by one token in a store.
@lru_cache(maxsize=4096)
def _limits(
    amounts: tuple[int | None, ...], algorithm: Algorithm, also: tuple[Limit, ...]
) -> Limits:
    named: dict[str, Any] = dict(zip(_USUAL, amounts, strict=True))
    return Limits(**named, algorithm=algorithm, also=also)


class Limited(Part):
    """What has limits, which enforce or only count."""

    limits: LimitsPart
    """What may be used; `{}` is no limit."""
    enforce: bool = True
    """false counts and reports, and never refuses: how a limit is tried out."""


class RulePart(Limited):
    """A further limit of one tenant, for some of its models together."""

    what = "a rule"

    match: Match
    """A model's name, or the beginning of names and a star: `gpt-4*`. Exact beats prefix, the longest prefix wins."""
    id: MaybeId = None
    """What the rule's counts are kept under: with an id, `match` may change and what was used stays used."""

    @property
    def name(self) -> str:
        """What the rule is known by among those of its tenant: its id, or else its matcher."""
        return str(self.match) if self.id is None else self.id


class DefaultPart(Limited):
    """What each tenant gets that is not listed."""

    what = "the default"

    models: list[RulePart] = Field(default_factory=list[RulePart])
    """Rules per model; at most one applies beside the tenant's own limits."""


class TenantPart(DefaultPart):
    """A tenant, with limits and rules of its own in place of the default's."""

    what = "a tenant"

    key: Key
    """What the gateway knows the tenant by."""


class ScopePart(Limited):
    """A limit across tenants: for everyone together, or for each value of what the gateway says of a request."""

    what = "a scope"

    id: Id
    """What its counts are kept under."""
    match: MaybeMatch = None
    """Only for this model, or for names that begin so: `gpt-4*`."""
    by: By = Field(default_factory=list[str])
    """Apart for each `tenant`, `model`, or value of your own such as `team`; by nothing: everyone together."""


class FilePart(Part):
    """Policies: who may use how much."""

    what = "the file"

    default: DefaultPart
    """What each tenant gets that is not listed."""
    tenants: list[TenantPart] = Field(default_factory=list[TenantPart])
    """Tenants with limits of their own."""
    scopes: list[ScopePart] = Field(default_factory=list[ScopePart])
    """Limits across tenants."""
    aliases: dict[Model, Model] = Field(default_factory=dict[str, str])
    """Names that stand for models: rules and limits are those of the model."""


# The part that stands below a field of this name; "" is the whole file.
PARTS: Final[dict[str, type[Part]]] = {
    "": FilePart,
    "also": LimitPart,
    "default": DefaultPart,
    "limits": LimitsPart,
    "models": RulePart,
    "scopes": ScopePart,
    "tenants": TenantPart,
}


class GenerateSchema(GenerateJsonSchema):
    """What may be left out may not be null: None is the model's own word for it."""

    def nullable_schema(self, schema: core_schema.NullableSchema) -> JsonSchemaValue:
        """What it is where it is there."""
        return self.generate_inner(schema["schema"])

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        """A default is said where it is a value."""
        said = super().default_schema(schema)
        return {name: value for name, value in said.items() if (name, value) != ("default", None)}
