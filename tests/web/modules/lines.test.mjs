import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { test } from "node:test";
import { quoteShell, writeClientLines } from "../../../web/lib/client-lines.js";

const server = { apiUrl: "http://127.0.0.1:8000/v1", rootUrl: "http://127.0.0.1:8000" };

test("a shell passes a quoted word on as it is", () => {
  for (const word of ["a/b", "it's", "$(id)", "`id`", '"', "a b", "\\", "!x", "--", "é\u202e"]) {
    assert.equal(execFileSync("sh", ["-c", `printf %s ${quoteShell(word)}`]).toString(), word);
  }
});

test("every client's lines hold the address and the model, and no key", () => {
  for (const { name, text } of writeClientLines({ ...server, model: "mine" })) {
    assert.ok(text.includes("http://127.0.0.1:8000") && text.includes("mine"), name);
  }
});

test("the body of curl is JSON whatever the model is called", () => {
  const model = "it's \"x\" $(id)\n";
  const [curl] = writeClientLines({ ...server, model });
  const script = curl.text.replace("curl", "args() { printf %s \"$6\"; }; args");
  const body = execFileSync("sh", ["-c", script.replace("-N", "-N")]).toString();
  assert.equal(JSON.parse(body).model, model);
});
