// The strip above the message field: one column per pass of the model, a solid cell for its own token and a round one for
// each drafted one that it kept. Knows steps and a canvas.

const CELL = 4;
const GAP = 1.5;
const COLUMN = CELL + 2.5;

/** Draw the latest `steps` (`[tokens, drafted]` each) that fit the width, the newest last. */
export function draw(canvas, steps) {
  const { clientWidth: width, clientHeight: height } = canvas;
  const scale = window.devicePixelRatio || 1;
  if (canvas.width !== Math.round(width * scale)) canvas.width = Math.round(width * scale);
  if (canvas.height !== Math.round(height * scale)) canvas.height = Math.round(height * scale);
  const pen = canvas.getContext("2d");
  const style = getComputedStyle(canvas);
  pen.setTransform(scale, 0, 0, scale, 0, 0);
  pen.clearRect(0, 0, width, height);
  const shown = steps.slice(-Math.floor(width / COLUMN));
  const most = Math.max(1, Math.floor((height + GAP) / (CELL + GAP)));
  shown.forEach(([tokens, drafted], i) => {
    column(pen, i * COLUMN, height, { own: tokens - drafted, drafted, most }, style);
  });
}

function column(pen, x, height, { own, drafted, most }, style) {
  for (let k = 0; k < Math.min(own + drafted, most); k += 1) {
    const y = height - CELL - k * (CELL + GAP);
    if (k < own) {
      pen.fillStyle = style.color;
      pen.fillRect(x, y, CELL, CELL);
    } else {
      pen.fillStyle = style.accentColor;
      pen.beginPath();
      pen.roundRect(x, y, CELL, CELL, CELL / 2);
      pen.fill();
    }
  }
}
