// Numbers for people.

const plain = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const fine = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });

/** Whole, with thousands apart; `–` for what is not there. */
export const count = (value) => (Number.isFinite(value) ? plain.format(value) : "–");

/** Three significant digits below 100. */
export const rate = (value) => (!Number.isFinite(value) ? "–" : Math.abs(value) < 100 ? fine.format(value) : plain.format(value));

export const percent = (share) => (Number.isFinite(share) ? `${rate(share * 100)} %` : "–");

/** A duration with a unit that suits it. */
export function duration(seconds) {
  if (!Number.isFinite(seconds)) return "–";
  if (seconds === 0) return "0";
  if (seconds < 0.001) return `${fine.format(seconds * 1e6)} µs`;
  if (seconds < 1) return `${fine.format(seconds * 1e3)} ms`;
  return `${fine.format(seconds)} s`;
}

/** How long ago something was: the two largest units. */
export function age(seconds) {
  if (!Number.isFinite(seconds) || seconds < 0) return "–";
  const parts = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  const first = Math.max(0, parts.findIndex(([, size]) => seconds >= size));
  const [[unit, size], next] = [parts[first], parts[first + 1]];
  const whole = Math.floor(seconds / size);
  return next ? `${whole} ${unit} ${Math.floor((seconds % size) / next[1])} ${next[0]}` : `${whole} ${unit}`;
}
