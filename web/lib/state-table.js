// The table of the state machine, and which of its cells an event ran.

/** @typedef {{next: string, verbs: string[], guard: string}} Cell */
/** @typedef {{states: string[], inputs: string[], cells: Map<string, Cell>}} StateTable */
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
 * Returns the cells that inputs run one after the other, from a state on. It ends at an input that is illegal there.
 * @param {StateTable} table
 * @param {string} state
 * @param {string[]} inputs
 * @returns {Step[]}
 */
export function followInputs(table, state, inputs) {
  /** @type {Step[]} */
  const steps = [];
  let current = state;
  for (const input of inputs) {
    const cell = findCell(table, current, input);
    if (cell === null) break;
    steps.push({ state: current, input, verbs: cell.verbs, next: cell.next });
    current = cell.next;
  }
  return steps;
}
