// Reads every case with the openai Node SDK. Argument: a file with {url, cases: [{name, responses, chat}]}.
// Prints a JSON object: name -> {responses, chat}, each {events, final, raised, raisedAtTheEnd}.
import { readFileSync } from "node:fs";
import OpenAI from "openai";

const { url, cases } = JSON.parse(readFileSync(process.argv[2], "utf-8"));
const client = new OpenAI({ baseURL: url, apiKey: "none", maxRetries: 0 });

function told(error) {
  return { kind: error.constructor.name, message: error.message, code: error.code ?? null, status: error.status ?? null };
}

async function read(stream, finish) {
  const heard = { events: [], final: null, raised: null, raisedAtTheEnd: null };
  try {
    for await (const event of stream) heard.events.push(event);
  } catch (error) {
    heard.raised = told(error);
    return heard;
  }
  try {
    heard.final = await finish(stream);
  } catch (error) {
    heard.raisedAtTheEnd = told(error);
  }
  return heard;
}

const out = {};
for (const { name, responses, chat } of cases) {
  out[name] = {
    responses: await read(client.responses.stream(responses), (stream) => stream.finalResponse()),
    chat: await read(client.chat.completions.stream(chat), (stream) => stream.finalChatCompletion()),
  };
  const made = out[name].responses.events[0]?.response?.id;
  if (made && !out[name].responses.raised) {
    const again = client.responses.stream({ response_id: made, starting_after: 1 });
    out[name].again = await read(again, (stream) => stream.finalResponse());
  }
}
process.stdout.write(JSON.stringify(out));
