"""How sure an audit is of the default model's rules: in 20 runs on fresh seeds the biased rule is caught how often, and
the sound ones are cleared how often.

    python benchmarks/audit.py [--runs 20] [--draws 1000] [--clean 200]
"""

from __future__ import annotations

import argparse
import time

from common import keep

import sooner
from sooner.audit.law import SAMPLED_CONTROL, SHAPES, Draws, RememberedRows, RuleFinding, check_rule
from sooner.audit.prompts import PROMPTS

RULES = ("rejection", "block")
TESTS = 3 * len(RULES) * len(SHAPES)


def main() -> None:
    """Run, print each finding, and keep the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--draws", type=int, default=200, help="texts under the biased rule")
    parser.add_argument("--clean", type=int, default=200, help="texts under a sound rule")
    arguments = parser.parse_args()
    engine = sooner.load(draft=None)
    started = time.process_time()
    caught, cleared, texts = 0, 0, 0
    for run in range(arguments.runs):
        prompt = engine.request(PROMPTS[run % len(PROMPTS)]).prompt
        rows = RememberedRows(engine.target, prompt)
        draws = Draws(rows)
        rule, shape = RULES[run % 2], tuple(SHAPES)[run // 2 % 2]
        clean = check_rule(draws, rule, shape, count=arguments.clean, seed=100 + run, among=TESTS)
        biased = check_rule(draws, *SAMPLED_CONTROL, count=arguments.draws, seed=100 + run, among=TESTS)
        rows.close()
        cleared += clean.as_it_should_be
        caught += biased.as_it_should_be
        texts += arguments.clean + arguments.draws
        print(run, _line(clean), "|", _line(biased), f"{time.process_time() - started:.0f} s of processor", flush=True)
    result = {"runs": arguments.runs, "caught": caught, "cleared": cleared, "texts": texts, "tests": TESTS}
    result |= {"draws": arguments.draws, "clean": arguments.clean}
    keep("audit", {"fingerprint": dict(engine.fingerprint), **result})
    print(result)


def _line(found: RuleFinding) -> str:
    least = min(test.p for test in found.tests)
    effect = max(test.effect for test in found.tests)
    said = "as it should be" if found.as_it_should_be else "WRONG"
    return f"{found.rule} {found.shape}: least p {least:.2g}, effect {effect:.2f}, {said}"


if __name__ == "__main__":
    main()
