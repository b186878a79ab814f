// The table of the state machine, and which of its cells an event ran.

/** @typedef {{state: string, input: string, verbs: string[], next: string}} Step */

/** @type {(state: string, input: string) => string} */
const cellKey = (state, input) => `${state} ${input}`;

/** Reads the answer of `/v1/inspect/table`. @param {any} json @returns {StateTable} */
export function readTable(json) {
  const list = (/** @type {unknown} */ value) => (Array.isArray(value) ? value : []);
  const cells = list(json?.cells).map((cell) => [
    cellKey(String(cell["state"]), String(cell["input"])),
    {
      next: String(cell["next"]),
      verbs: list(cell["verbs"]).map(String),
      guard: cell["guard"] ? String(cell["guard"]) : "",
    },
  ]);
  return {
    states: list(json?.states).map(String),
    inputs: list(json?.inputs).map(String),
    cells: new Map(/** @type {[string, Cell][]} */ (cells)),
  };
}

/** @param {StateTable} table @param {string} state @param {string} input */
export function findCell(table, state, input) {
  return table.cells.get(cellKey(state, input)) ?? null;
}

/**
 * Returns the cells that ran, as the table has them. A cell that it lacks has no verbs.
 * @param {StateTable} table
 * @param {unknown} cells Pairs of state and input.
 * @returns {Step[]}
 */
export function readSteps(table, cells) {
  if (!Array.isArray(cells)) return [];
  return cells.filter(Array.isArray).map(([state, input]) => {
    const cell = findCell(table, String(state), String(input));
    return { state: String(state), input: String(input), verbs: cell?.verbs ?? [], next: cell?.next ?? "" };
  });
}

/**
 * Returns the line that holds what is known of the step of an event: that of the step's last event.
 * @param {Record<string, any>[]} lines
 * @param {number} n
 */
export function findStep(lines, n) {
  const line = lines[n] ?? {};
  for (let m = n; m < lines.length && lines[m]?.["step"] === line["step"]; m++) {
    if (lines[m]?.["detail"] !== undefined) return /** @type {Record<string, any>} */ (lines[m]);
  }
  return line;
}
