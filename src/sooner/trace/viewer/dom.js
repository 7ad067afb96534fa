// Small helpers over the document: elements, remembered wishes, resolved colours. Knows nothing about traces.

export const $ = (id) => document.getElementById(id);

/** An element with a class, text and children. Text is only ever text: no trace can bring markup. */
export function make(tag, className = "", ...children) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  node.append(...children);
  return node;
}

/** An SVG element with attributes and children. */
export function draw(tag, attributes = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

/** Read a remembered value; `otherwise` where there is none, or no storage. */
export function recall(name, otherwise) {
  try {
    return JSON.parse(localStorage.getItem(`sooner.${name}`)) ?? otherwise;
  } catch {
    return otherwise;
  }
}

/** Remember a value. A full or forbidden storage is no reason to stop. */
export function remember(name, value) {
  try {
    localStorage.setItem(`sooner.${name}`, JSON.stringify(value));
  } catch {
    // pages opened from disk may have no storage: the page works, it only forgets
  }
}

/** A custom property of the style sheet as a colour that a canvas understands, in the theme of the moment. */
export function colour(name) {
  const probe = make("span");
  probe.style.color = `var(--${name})`;
  document.body.append(probe);
  const { color } = getComputedStyle(probe);
  probe.remove();
  return color;
}

/** Fit a canvas to its place and the screen's resolution; its pen, in CSS pixels, on a clean sheet. */
export function pen(canvas) {
  const { clientWidth: width, clientHeight: height } = canvas;
  const scale = window.devicePixelRatio || 1;
  if (canvas.width !== Math.round(width * scale)) canvas.width = Math.round(width * scale);
  if (canvas.height !== Math.round(height * scale)) canvas.height = Math.round(height * scale);
  const context = canvas.getContext("2d");
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, width, height);
  return { context, width, height };
}

/** Whether the reader asked the system for less motion. */
export const calm = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

/** The first index in an ascending list whose value is above `value`. */
export function above(list, value) {
  let [low, high] = [0, list.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (list[middle] > value) high = middle;
    else low = middle + 1;
  }
  return low;
}

const HIDDEN = /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/gu;

/** A token's text with everything invisible made visible. */
export function visible(text) {
  return text
    .replace(/ /g, "·")
    .replace(/\n/g, "↵")
    .replace(/\t/g, "→")
    .replace(HIDDEN, (sign) => `U+${sign.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`);
}
