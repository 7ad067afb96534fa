"""The OpenAPI document, tried out by schemathesis on a real socket, bounded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from test_server_lives import Slow
from test_server_socket import listening

from sooner.server import Service, Settings, create_app

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


DOCUMENT = create_app(Service(lambda: None, Settings())).openapi()  # type: ignore[arg-type,return-value]  # never loaded
OPERATIONS: list[Any] = [
    result.ok()  # type: ignore[union-attr]  # a broken document fails here
    for result in schemathesis.openapi.from_dict(DOCUMENT).get_all_operations()
]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with listening(Slow(0.0), Settings(timeout_s=20.0)) as (address, _):
        yield address


def without_haste(case: Any) -> Any:
    """A caller who allows a moment gets a 504, as it is documented; which would look like a fault of the server's."""
    if isinstance(case.body, dict) and isinstance(case.body.get("timeout"), int | float):
        case.body["timeout"] = max(case.body["timeout"], 20.0) if case.body["timeout"] > 0 else case.body["timeout"]
    return case


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: str(operation.label))
def test_no_request_that_the_document_allows_breaks_the_server(operation: Any, address: str) -> None:
    @given(case=operation.as_strategy())
    @settings(max_examples=30, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    def ask(case: Any) -> None:
        without_haste(case).call_and_validate(base_url=address, checks=CHECKS, timeout=30)

    ask()


@pytest.mark.parametrize("operation", OPERATIONS[:2], ids=lambda operation: str(operation.label))
def test_no_request_that_it_forbids_does_either(operation: Any, address: str) -> None:
    @given(case=operation.as_strategy(generation_mode=schemathesis.GenerationMode.NEGATIVE))
    @settings(max_examples=40, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    def ask(case: Any) -> None:
        without_haste(case).call_and_validate(base_url=address, checks=CHECKS, timeout=30)

    ask()


def test_the_document_names_every_parameter_and_no_other_error() -> None:
    document = DOCUMENT
    assert {"/v1/chat/completions", "/v1/completions", "/v1/models", "/v1/models/{id}", "/health"} <= set(
        document["paths"]
    )
    assert "422" not in str(document["paths"])
    chat = document["components"]["schemas"]["ChatBody"]
    assert {"messages", "draft", "prediction", "logit_bias", "top_k"} <= set(chat["properties"])
    assert chat["additionalProperties"] is False
