// Calls the gRPC API with @grpc/grpc-js. Argument: a file with {address, proto, weather, stall, invalid}: requests.
// Prints {events, cancelled, error}: the events of a stream as JSON, the code of a cancelled call, and an error.
import { readFileSync } from "node:fs";
import grpc from "@grpc/grpc-js";
import loader from "@grpc/proto-loader";

const { address, proto, weather, stall, invalid } = JSON.parse(readFileSync(process.argv[2], "utf-8"));
const options = { keepCase: true, longs: Number, arrays: true, objects: true }; // empty lists and objects are kept
const packages = grpc.loadPackageDefinition(loader.loadSync(proto, options));
const client = new packages.antiphon.v1.Responses(address, grpc.credentials.createInsecure());

// google.protobuf.Value to JSON and back: the loader does not convert it.
function fromValue(value) {
  if (value.structValue) return fromFields(value.structValue);
  if (value.listValue) return fromList(value.listValue);
  return value.stringValue ?? value.numberValue ?? value.boolValue ?? null;
}

function fromFields({ fields }) {
  return Object.fromEntries(Object.entries(fields ?? {}).map(([name, value]) => [name, fromValue(value)]));
}

function fromList({ values }) {
  return (values ?? []).map(fromValue);
}

function toValue(json) {
  if (json === null) return { nullValue: 0 };
  if (Array.isArray(json)) return { listValue: toList(json) };
  if (typeof json === "object") return { structValue: toFields(json) };
  return { [`${typeof json === "boolean" ? "bool" : typeof json}Value`]: json };
}

function toFields(json) {
  return { fields: Object.fromEntries(Object.entries(json).map(([name, value]) => [name, toValue(value)])) };
}

function toList(json) {
  return { values: json.map(toValue) };
}

// A message to JSON: each field is a scalar, a message, or one of the three kinds above.
function toJson(message) {
  if (message === null || typeof message !== "object") return message;
  if ("fields" in message) return fromFields(message);
  if ("values" in message) return fromList(message);
  if (Object.keys(message).some((name) => /^(null|string|number|bool|struct|list)Value$/.test(name))) {
    return fromValue(message);
  }
  const fields = Object.entries(message).filter(([, value]) => value !== undefined);
  return Object.fromEntries(fields.map(([name, value]) => [name, toJson(value)]));
}

function request({ input, tools, ...fields }) {
  return { ...fields, input: input && toValue(input), tools: tools && toList(tools) };
}

function stream(fields, onEvent) {
  return new Promise((resolve) => {
    const call = client.CreateStream(request(fields));
    call.on("data", (message) => onEvent(toJson(message), call));
    call.on("error", resolve);
    call.on("end", () => resolve(null));
  });
}

const events = [];
await stream(weather, (event) => events.push(event));
const cancelled = await stream(stall, (_, call) => call.cancel());
const error = await stream(invalid, () => {});
const body = JSON.parse(error.metadata.get("antiphon-error-bin")[0].toString());
console.log(JSON.stringify({ events, cancelled: cancelled.code, error: { ...body.error, status: error.code } }));
client.close();
