// The style sheet's colours, for canvases.

const probe = document.createElement("span");
probe.hidden = true;

/** The colour behind a custom property such as `--c-decode`, resolved for the theme in use. */
export function color(name) {
  if (!probe.isConnected) document.body.append(probe);
  probe.style.color = `var(${name})`;
  return getComputedStyle(probe).color;
}

/** The same colour, see-through. */
export function faint(name, alpha) {
  const [r, g, b] = color(name).match(/[\d.]+/g);
  return `rgb(${r} ${g} ${b} / ${alpha})`;
}
