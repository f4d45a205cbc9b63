"""OpenAI's error bodies."""

from __future__ import annotations


def check(response, status, *, param=None, code=None, kind="invalid_request_error", text=""):
    """It is one, and says this."""
    assert response.status_code == status, response.text
    assert set(response.json()) == {"error"}
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["type"], error["param"], error["code"]) == (kind, param, code)
    assert text in error["message"]
    return error["message"]
