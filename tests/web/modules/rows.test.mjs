import assert from "node:assert/strict";
import { test } from "node:test";
import { buildRows, describeRow, findRow } from "../../../web/lib/event-rows.js";
import { findStep, readSteps, readTable } from "../../../web/lib/state-table.js";
import { decodeRate, describeEnding, describeFinding, formatSeconds, listPhases, listQuery, readTurn } from "../../../web/lib/turns.js";

const text = (delta, output_index = 0, content_index = 0) => ({ type: "response.output_text.delta", output_index, content_index, delta });
const EVENTS = [
  { type: "response.created", response: { status: "in_progress" } },
  { type: "response.output_item.added", output_index: 0, item: { type: "message" } },
  text("a"), text("b"), text("c", 0, 1), text("d", 1), text("e", 1),
  { type: "response.refusal.delta", output_index: 1, content_index: 0, delta: "f" },
  { type: "other.delta", output_index: 1 }, { type: "other.delta", output_index: 1 },
];
const ALL = { merge: false, itemsOnly: false, search: "" };

test("only deltas of one text in a row are merged", () => {
  const rows = buildRows(EVENTS, { ...ALL, merge: true }).map(({ first, last }) => [first, last]);
  assert.deepEqual(rows, [[0, 0], [1, 1], [2, 3], [4, 4], [5, 6], [7, 7], [8, 8], [9, 9]]);
  assert.equal(buildRows(EVENTS, ALL).length, EVENTS.length);
});

test("deltas that a search leaves apart are not merged", () => {
  const events = [text("qa"), text("b"), text("qc")];
  const rows = buildRows(events, { merge: true, itemsOnly: false, search: "Q" });
  assert.deepEqual(rows, [{ first: 0, last: 0 }, { first: 2, last: 2 }]);
});

test("items only leaves deltas and parts out", () => {
  assert.deepEqual(buildRows(EVENTS, { ...ALL, itemsOnly: true }).map((row) => row.first), [0, 1]);
});

test("an event is found in its row, or in the one before", () => {
  const rows = [{ first: 2, last: 3 }, { first: 7, last: 7 }];
  assert.deepEqual([0, 2, 3, 5, 7, 9].map((n) => findRow(rows, n)), [0, 0, 0, 0, 1, 1]);
  assert.equal(findRow([], 3), 0);
});

test("a row has a name, a place and a text", () => {
  assert.deepEqual(describeRow(EVENTS, { first: 2, last: 3 }), { name: "output_text.delta", place: "[0.0]", text: "ab" });
  assert.deepEqual(describeRow(EVENTS, { first: 1, last: 1 }), { name: "output_item.added", place: "[0]", text: "message" });
  assert.deepEqual(describeRow([{}], { first: 0, last: 0 }), { name: "undefined", place: "", text: "" });
});

const TABLE = readTable({
  states: ["IDLE", "MESSAGE"],
  inputs: ["SAY", "STOP"],
  cells: [
    { state: "IDLE", input: "SAY", next: "MESSAGE", verbs: ["open", "grow"] },
    { state: "MESSAGE", input: "STOP", next: "ENDED", verbs: ["flush"], guard: "same phase" },
  ],
});

test("cells that ran are looked up in the table", () => {
  const steps = readSteps(TABLE, [["IDLE", "SAY"], ["IDLE", "NEW"], "x"]);
  assert.deepEqual(steps.map((step) => [step.input, step.verbs.join(" "), step.next]), [["SAY", "open grow", "MESSAGE"], ["NEW", "", ""]]);
  assert.deepEqual(readSteps(TABLE, [["constructor", "__proto__"]])[0].verbs, []);
  assert.deepEqual(readSteps(TABLE, null), []);
  assert.deepEqual(readTable(null), { states: [], inputs: [], cells: new Map() });
});

test("an event belongs to the step that its last event describes", () => {
  const lines = [{ step: 0, detail: { a: 0 } }, { step: 1 }, { step: 1, detail: { a: 1 } }, { step: 2 }, { step: 3, detail: { a: 3 } }];
  assert.deepEqual(lines.map((_, n) => findStep(lines, n).detail?.a), [0, 1, 1, undefined, 3]);
  assert.deepEqual(findStep(lines, 9), {});
});

test("phases, rates and findings are written from what is known", () => {
  const phases = listPhases({ submitted: 10, admitted: 22, first_token: null, last_token: 50 });
  assert.deepEqual(phases, [["queue", 0.012]]);
  assert.equal(decodeRate(readTurn({ output_tokens: 64 }), [["decode", 2]]), 32);
  for (const [output_tokens, decode] of [[64, 0], [null, 1]]) assert.equal(decodeRate(readTurn({ output_tokens }), [["decode", decode]]), null);
  assert.equal(describeFinding({ code: "a", subject: "b", expected: "c", actual: "d" }), "a: b: expected c, found d");
  assert.equal(describeFinding({}), "");
});

test("a turn is read whatever is missing", () => {
  assert.equal(readTurn({}).cause, "");
  assert.equal(readTurn({ ending: { cause: "deadline", detail: 3 } }).detail, "3");
  assert.equal(readTurn({ cached_tokens: "many" }).cached, null);
  assert.equal(readTurn({ created_at: 1_790_000_000 }).at.toISOString(), "2026-09-21T14:13:20.000Z");
  assert.equal(readTurn({ created_at: "never" }).at, null);
});

test("an ending has a sign for what it means", () => {
  const sign = (cause, status = "completed") => describeEnding(readTurn({ ending: { cause }, status })).sign;
  assert.deepEqual(["stop_token", "max_output_tokens", "engine_fault", "new_cause"].map((cause) => sign(cause)), ["●", "◐", "■", "●"]);
  assert.equal(sign("", "in_progress"), "▶");
  assert.equal(describeEnding(readTurn({ status: "completed" })).words, "completed");
});

test("times and queries are written for readers and for the server", () => {
  assert.deepEqual([null, 0.0123, 3.14159, 12.34].map(formatSeconds), ["–", "12 ms", "3.14 s", "12.3 s"]);
  assert.equal(listQuery({ status: "", tool: "a&b" }, "resp_1"), "limit=50&tool=a%26b&after=resp_1");
});
