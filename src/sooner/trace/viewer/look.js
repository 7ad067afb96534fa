// How an origin looks: a colour and a line for each drafter, none for the target; the same in text, tree and legend.

import { make } from "./dom.js";
import { number, t } from "./strings.js";
import { TARGET } from "./trace.js";

const LOOKS = 6;
const seen = [];

/** The number of a drafter's look; of several that agreed, the first one's. */
export function shade(source) {
  const name = source.split("+")[0];
  if (!seen.includes(name)) seen.push(name);
  return seen.indexOf(name) % LOOKS;
}

/** The class of a source. */
export function look(source) {
  return source === TARGET ? "own" : `drafted d${shade(source)}`;
}

/** Give the looks out anew: the drafter that gave most comes first. */
export function assign(names) {
  seen.splice(0, seen.length, ...names.filter((name) => name !== TARGET));
}

/** A source in words. */
export function origin(source) {
  return source === TARGET ? t("target") : source.split("+").join(" + ");
}

/** The legend: every origin with its look and its count. */
export function legend(place, counts) {
  place.replaceChildren(
    ...counts.map(([name, count]) => {
      const entry = make("span", "", make("span", look(name), origin(name)), ` ${number(count)}`);
      return entry;
    }),
  );
}
