import assert from "node:assert/strict";
import { test } from "node:test";
import { addFrame, alignReadings, describeFrames, findNumber } from "../../../web/lib/readings.js";

const read = (...lines) => {
  const reading = new Map();
  for (const line of lines) addFrame(reading, line);
  return reading;
};

test("frames stand at the last event that was read", () => {
  const reading = read({ n: -1, data: 1 }, { n: 2, name: "a", data: 2 }, { n: 2, data: "[DONE]" });
  assert.deepEqual([...reading.keys()], [-1, 2]);
  assert.deepEqual(reading.get(2), [{ name: "a", data: 2 }, { name: "", data: "[DONE]" }]);
});

test("a line without a number belongs to the event before", () => {
  assert.deepEqual([...read({ data: 0 }, { n: 3, data: 1 }, { n: "4", data: 2 }, { n: 1.5 }).keys()], [-1, 3]);
});

test("readings are aligned by their numbers", () => {
  const numbers = alignReadings([read({ n: 4 }, { n: 9 }), read({ n: -1 }, { n: 4 }, { n: 10 }), read()]);
  assert.deepEqual(numbers, [-1, 4, 9, 10]);
  assert.deepEqual([-1, 0, 4, 8, 99].map((n) => numbers[findNumber(numbers, n)]), [-1, -1, 4, 4, 10]);
  assert.equal(findNumber([], 3), 0);
});

test("a line says what differs from one frame to the next", () => {
  const chunk = (choice, usage) => ({ name: "", data: { id: "c", choices: [choice], usage } });
  assert.equal(describeFrames([chunk({ index: 0, delta: { content: "He" }, finish_reason: null })]), '{"content":"He"}');
  assert.equal(
    describeFrames([chunk({ text: "", finish_reason: "stop" }, { total_tokens: 3 }), { name: "", data: "[DONE]" }]),
    '"" finish_reason stop usage {"total_tokens":3} · [DONE]',
  );
  const block = { type: "content_block_delta", delta: { type: "text_delta", text: "He" } };
  assert.equal(
    describeFrames([{ name: "content_block_delta", data: block }]),
    'content_block_delta {"text":"He"}',
  );
  const delta = { type: "response.output_text.delta", output_index: 0, content_index: 1, delta: "He" };
  assert.equal(describeFrames([{ name: delta.type, data: delta }]), "output_text.delta [0.1] He");
});

test("no frame is too odd for a line", () => {
  const odd = [undefined, null, 1, [], {}, { choices: [null, 1, {}] }, { type: {}, delta: null }, { type: "response.x" }];
  for (const data of odd) assert.equal(typeof describeFrames([{ name: "", data }]), "string");
  assert.ok(describeFrames(Array.from({ length: 10_000 }, () => ({ name: "n".repeat(50), data: {} }))).length < 400);
});
