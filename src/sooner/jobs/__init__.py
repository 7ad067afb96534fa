"""Files of prompts answered in batches: `lines` reads them, `work` answers them in order, `answers` keeps the file."""

from __future__ import annotations

from sooner.jobs.answers import Answers, Place
from sooner.jobs.lines import Dead, Job, read_jobs
from sooner.jobs.work import Answered, answer_all

__all__ = ["Answered", "Answers", "Dead", "Job", "Place", "answer_all", "read_jobs"]
