import assert from "node:assert/strict";
import { test } from "node:test";
import { clipEqual, comparePrompts, countCommon, findParting } from "../../../web/lib/differences.js";

const created = (id, fields = {}) => ({ type: "response.created", sequence_number: 0, response: { id, status: "in_progress", ...fields } });
const deltas = (...texts) =>
  texts.map((delta, n) => ({ type: "response.output_text.delta", item_id: `msg_${Math.random()}`, output_index: 0, content_index: 0, delta, sequence_number: n + 1 }));
const done = (text) => ({ type: "response.output_text.done", output_index: 0, content_index: 0, text });
const end = (status) => ({ type: `response.${status}`, response: { id: "r", status, created_at: Math.random(), usage: { n: Math.random() } } });

test("turns that did the same have no event that differs", () => {
  const first = [created("a", { temperature: 1 }), ...deltas("Hello", ", you"), done("Hello, you"), end("completed")];
  const second = [created("b", { temperature: 0 }), ...deltas("He", "l", "lo, you"), done("Hello, you"), end("completed")];
  assert.equal(findParting(first, second), null);
  assert.equal(findParting([], []), null);
});

test("the first event that differs is the one with the first character that differs", () => {
  const first = [created("a"), ...deltas("Hel", "lo, ", "you"), done("Hello, you")];
  const second = [created("b"), ...deltas("H", "e", "l", "lo", ", world"), done("Hello, world")];
  assert.deepEqual(findParting(first, second), [3, 5]);
});

test("a text that ends earlier differs at the event after it", () => {
  const first = [created("a"), ...deltas("Hel"), done("Hel")];
  const second = [created("b"), ...deltas("He", "llo"), done("Hello")];
  assert.deepEqual(findParting(first, second), [2, 2]);
  assert.deepEqual(findParting(second, first), [2, 2]);
  assert.deepEqual(findParting(first.slice(0, 2), second), [null, 2]);
});

test("a log that ends earlier has no event there", () => {
  const first = [created("a"), ...deltas("Hello"), end("completed")];
  assert.deepEqual(findParting(first, first.slice(0, 2)), [2, null]);
  assert.deepEqual(findParting([], first), [null, 0]);
});

test("kinds, places, statuses and errors count", () => {
  const call = (name) => ({ type: "response.output_item.added", output_index: 0, item: { id: name, call_id: name, type: "function_call", name } });
  assert.deepEqual(findParting([created("a"), call("x")], [created("a"), call("y")]), [1, 1]);
  assert.deepEqual(findParting([created("a"), end("completed")], [created("a"), end("incomplete")]), [1, 1]);
  const failed = (code) => ({ type: "response.failed", response: { status: "failed", error: { code } } });
  assert.deepEqual(findParting([failed("x")], [failed("y")]), [0, 0]);
  const [delta] = deltas("a");
  assert.deepEqual(findParting([delta], [{ ...delta, content_index: 1 }]), [0, 0]);
});

test("odd events are compared, too", () => {
  const odd = [{}, { type: null }, { delta: {} }, { response: null }, { response: 1, type: [] }];
  for (const [i, event] of odd.entries()) {
    assert.equal(findParting([event], [event]), null);
    assert.equal(findParting([event], [{ type: "other", i }])?.[0], 0);
  }
});

const tokens = (...texts) => texts.map((text) => ({ id: `id ${text}`, text }));

test("prompts share a begin, and differ in texts", () => {
  const { common, changes } = comparePrompts(tokens("a", "b", "c", "d", "e"), tokens("a", "b", "x", "d", "y", "e"));
  assert.equal(common, 2);
  assert.deepEqual(changes, [
    { kind: "removed", text: "c" }, { kind: "added", text: "x" }, { kind: "same", text: "d" }, { kind: "added", text: "y" }, { kind: "same", text: "e" },
  ]);
  assert.deepEqual(comparePrompts([{ id: 7, text: "" }], []).changes, [{ kind: "removed", text: "⟨7⟩" }]);
  assert.deepEqual(comparePrompts(tokens("a"), tokens("a")), { common: 1, changes: [] });
});

test("prompts that differ too much show where they begin to", () => {
  const random = (seed) => Array.from({ length: 60_000 }, (_, i) => ({ id: (i * seed) % 65_537, text: "x" }));
  const { changes } = comparePrompts(random(40_503), random(30_011));
  assert.deepEqual(changes.map(({ kind, text }) => [kind, text.length]), [["removed", 200], ["added", 200]]);
});

test("texts begin alike", () => {
  assert.deepEqual([["abc", "abd"], ["", "a"], ["ab", "ab"]].map(([a, b]) => countCommon(a, b)), [2, 0, 2]);
});

test("a long equal text is clipped at lines, and nothing of it is lost", () => {
  const lines = "a line of some words\n".repeat(100);
  for (const text of [lines, "x".repeat(1000), "", "short", "\n".repeat(700)]) {
    for (const [isFirst, isLast] of [[true, false], [false, true], [false, false], [true, true]]) {
      const { begin, left, end } = clipEqual(text, isFirst, isLast);
      assert.equal(begin.length + left + end.length, text.length);
      assert.ok(text.startsWith(begin) && text.endsWith(end));
      assert.ok(left === 0 || left >= 160);
      if (left > 0 && isFirst) assert.equal(begin, "");
      if (left > 0 && isLast) assert.equal(end, "");
    }
  }
  const { begin, end } = clipEqual(lines, false, false);
  assert.ok(begin.endsWith("\n") && end.startsWith("a line") && begin.length < 400 && end.length < 400);
});
