import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { formatPath } from "../../../web/lib/event-paths.js";
import { countUpTo, EventFold } from "../../../web/lib/fold.js";

function foldAll(events) {
  const fold = new EventFold();
  for (const event of events) fold.append(event);
  return fold;
}

const message = (text) => ({ type: "message", id: "msg_1", content: [{ type: "output_text", text, annotations: [] }] });
const delta = (sequence_number, text) => ({
  type: "response.output_text.delta", sequence_number, output_index: 0, content_index: 0, delta: text, logprobs: [{ token: text }],
});
const EVENTS = [
  { type: "response.created", sequence_number: 0, response: { id: "resp_1", output: [] } },
  { type: "response.output_item.added", sequence_number: 1, output_index: 0, item: message("") },
  delta(2, "He"),
  delta(3, "llo"),
];

const fixture = process.env.FOLD_FIXTURE;
test("as of every event of every snapshot case, the response is that of the plain fold", { skip: !fixture && "run by pytest" }, () => {
  const cases = JSON.parse(readFileSync(fixture, "utf8"));
  assert.ok(cases.length > 100);
  for (const { name, events, expected } of cases) {
    const fold = foldAll(events);
    assert.deepEqual(fold.damage, [], name);
    for (const n of [...events.keys()].reverse()) assert.deepEqual(fold.asOf(n), expected[n], `${name}, event ${n}`);
    assert.deepEqual(fold.asOf(events.length - 1), events.at(-1).response ?? expected.at(-1), name);
  }
});

test("a growing log answers as a whole one does", () => {
  const fold = new EventFold();
  EVENTS.forEach((event, n) => {
    fold.append(event);
    assert.deepEqual(fold.asOf(n), foldAll(EVENTS).asOf(n));
  });
  assert.equal(fold.asOf(3).output[0].content[0].text, "Hello");
  assert.deepEqual(fold.asOf(2).output[0].content[0].logprobs, [{ token: "He" }]);
});

test("questions change no event", () => {
  const before = structuredClone(EVENTS);
  const fold = foldAll(EVENTS);
  for (const n of EVENTS.keys()) fold.asOf(n);
  assert.deepEqual(EVENTS, before);
});

test("an event says what it changed", () => {
  const fold = foldAll(EVENTS);
  const change = fold.changeOf(3);
  assert.equal(change.kind, "append");
  assert.equal(formatPath(change.path), "output[0].content[0].text");
  assert.equal(change.text, "llo");
});

test("a gap and foreign events are damage, and the rest is shown", () => {
  const foreign = [
    { type: "response.output_text.delta", sequence_number: 4, output_index: "__proto__", content_index: 0, delta: "x" },
    { type: "response.output_item.added", sequence_number: 5, output_index: 1e9, item: {} },
    { type: "constructor.delta", sequence_number: 6, output_index: 0, delta: "x" },
    { type: "response.output_text.annotation.added", sequence_number: 9, output_index: 0, content_index: 0 },
  ];
  const fold = foldAll([...EVENTS, ...foreign, delta(10, "!")]);
  assert.deepEqual(fold.damage.map((entry) => entry.event), [4, 5, 7, 7]);
  assert.equal(fold.asOf(8).output[0].content[0].text, "Hello!");
  assert.equal({}.polluted, undefined);
  for (const n of fold.events.keys()) fold.changeOf(n);
});

test("a log that begins in the middle, or with nothing, is folded", () => {
  assert.equal(new EventFold().asOf(0), null);
  assert.equal(foldAll([{ ...delta(7, "x") }]).asOf(0).output[0].content[0].text, "x");
});

test("100 000 deltas, and 100 000 items, are answered from a few steps", () => {
  const deltas = foldAll([...EVENTS.slice(0, 2), ...Array.from({ length: 100_000 }, (_, i) => delta(i + 2, "ab"))]);
  assert.equal(deltas.asOf(50_001).output[0].content[0].text.length, 100_000);
  const items = foldAll([
    EVENTS[0],
    ...Array.from({ length: 100_000 }, (_, i) => ({
      type: "response.output_item.added", sequence_number: i + 1, output_index: i, item: message(""),
    })),
  ]);
  assert.equal(items.asOf(70_000).output.length, 70_000);
});

test("numbers are counted up to a limit", () => {
  for (const [limit, count] of [[-1, 0], [0, 1], [1, 1], [5, 3], [9, 3]]) assert.equal(countUpTo([0, 2, 5], limit), count);
});
