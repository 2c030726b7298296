"""Every form that the codecs lab measures is the same request and the same answer."""

import numpy as np
import pytest

from loadtest.lab.bodies import DENSE, LENGTHS, VALUES
from loadtest.lab.codecs import forms, main
from loadtest.lab.ranking import reference_backend


def test_every_form_decodes_to_the_same_request() -> None:
    first, *others = (
        form.request.decode() for form in forms(reference_backend(10).spec, 10, 0).values()
    )
    for other in others:
        for name in (DENSE, LENGTHS, VALUES):
            np.testing.assert_array_equal(other.inputs[name], first.inputs[name])


def test_every_form_has_a_line_for_each_number_of_rows(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--rows", "1", "2", "--rounds", "1", "--seconds", "0.0001"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    assert len(lines) == 2 + 2 * len(forms(reference_backend(1).spec, 1, 0))
