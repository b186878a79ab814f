-- A store file of schema version 2: one response in a conversation, as `.dump` of sqlite3 writes it.
BEGIN TRANSACTION;
CREATE TABLE conversations (
    owner TEXT NOT NULL, id TEXT NOT NULL, created INTEGER NOT NULL, metadata BLOB NOT NULL, PRIMARY KEY (owner, id)
) WITHOUT ROWID;
INSERT INTO "conversations" VALUES('me','conv_1',1,CAST('{"k":"v"}' AS BLOB));
CREATE TABLE events (
    response TEXT NOT NULL, number INTEGER NOT NULL, data BLOB NOT NULL, PRIMARY KEY (response, number)
) WITHOUT ROWID;
INSERT INTO "events" VALUES('resp_old',0,CAST('{"type":"response.created","sequence_number":0,"response":{"id":"resp_1","object":"response","created_at":100,"completed_at":null,"status":"in_progress","incomplete_details":null,"model":"m","previous_response_id":null,"instructions":null,"output":[],"error":null,"tools":[],"tool_choice":"auto","truncation":"disabled","parallel_tool_calls":true,"text":{"format":{"type":"text"}},"top_p":1.0,"presence_penalty":0.0,"frequency_penalty":0.0,"top_logprobs":0,"temperature":1.0,"reasoning":null,"usage":null,"max_output_tokens":null,"max_tool_calls":null,"store":true,"background":false,"service_tier":"default","metadata":{},"safety_identifier":null,"prompt_cache_key":null}}' AS BLOB));
INSERT INTO "events" VALUES('resp_old',1,CAST('{"type":"response.in_progress","sequence_number":1,"response":{"id":"resp_1","object":"response","created_at":100,"completed_at":null,"status":"in_progress","incomplete_details":null,"model":"m","previous_response_id":null,"instructions":null,"output":[],"error":null,"tools":[],"tool_choice":"auto","truncation":"disabled","parallel_tool_calls":true,"text":{"format":{"type":"text"}},"top_p":1.0,"presence_penalty":0.0,"frequency_penalty":0.0,"top_logprobs":0,"temperature":1.0,"reasoning":null,"usage":null,"max_output_tokens":null,"max_tool_calls":null,"store":true,"background":false,"service_tier":"default","metadata":{},"safety_identifier":null,"prompt_cache_key":null}}' AS BLOB));
INSERT INTO "events" VALUES('resp_old',2,CAST('{"type":"response.output_item.added","sequence_number":2,"output_index":0,"item":{"type":"message","id":"msg_0","role":"assistant","status":"in_progress","content":[]}}' AS BLOB));
INSERT INTO "events" VALUES('resp_old',3,CAST('{"type":"response.content_part.added","sequence_number":3,"item_id":"msg_0","output_index":0,"content_index":0,"part":{"type":"output_text","text":"","annotations":[],"logprobs":[]}}' AS BLOB));
INSERT INTO "events" VALUES('resp_old',4,CAST('{"type":"response.output_text.delta","sequence_number":4,"item_id":"msg_0","output_index":0,"content_index":0,"delta":"a","logprobs":[]}' AS BLOB));
INSERT INTO "events" VALUES('resp_old',5,CAST('{"type":"response.output_text.delta","sequence_number":5,"item_id":"msg_0","output_index":0,"content_index":0,"delta":"b","logprobs":[]}' AS BLOB));
INSERT INTO "events" VALUES('resp_old',6,CAST('{"type":"response.output_text.done","sequence_number":6,"item_id":"msg_0","output_index":0,"content_index":0,"text":"ab","logprobs":[]}' AS BLOB));
INSERT INTO "events" VALUES('resp_old',7,CAST('{"type":"response.content_part.done","sequence_number":7,"item_id":"msg_0","output_index":0,"content_index":0,"part":{"type":"output_text","text":"ab","annotations":[],"logprobs":[]}}' AS BLOB));
INSERT INTO "events" VALUES('resp_old',8,CAST('{"type":"response.output_item.done","sequence_number":8,"output_index":0,"item":{"type":"message","id":"msg_0","role":"assistant","status":"completed","content":[{"type":"output_text","text":"ab","annotations":[],"logprobs":[]}]}}' AS BLOB));
INSERT INTO "events" VALUES('resp_old',9,CAST('{"type":"response.completed","sequence_number":9,"response":{"id":"resp_1","object":"response","created_at":100,"completed_at":200,"status":"completed","incomplete_details":null,"model":"m","previous_response_id":null,"instructions":null,"output":[{"type":"message","id":"msg_0","role":"assistant","status":"completed","content":[{"type":"output_text","text":"ab","annotations":[],"logprobs":[]}]}],"error":null,"tools":[],"tool_choice":"auto","truncation":"disabled","parallel_tool_calls":true,"text":{"format":{"type":"text"}},"top_p":1.0,"presence_penalty":0.0,"frequency_penalty":0.0,"top_logprobs":0,"temperature":1.0,"reasoning":null,"usage":{"input_tokens":3,"input_tokens_details":{"cached_tokens":0,"cache_write_tokens":0},"output_tokens":4,"output_tokens_details":{"reasoning_tokens":0},"total_tokens":7},"max_output_tokens":null,"max_tool_calls":null,"store":true,"background":false,"service_tier":"default","metadata":{},"safety_identifier":null,"prompt_cache_key":null}}' AS BLOB));
CREATE TABLE items (
    owner TEXT NOT NULL, id TEXT NOT NULL, response TEXT NOT NULL, PRIMARY KEY (owner, id, response)
) WITHOUT ROWID;
INSERT INTO "items" VALUES('me','msg_0','resp_old');
INSERT INTO "items" VALUES('me','msg_old0000','resp_old');
CREATE TABLE responses (
    id TEXT PRIMARY KEY, owner TEXT NOT NULL, created INTEGER NOT NULL, head BLOB NOT NULL, given BLOB NOT NULL,
    size INTEGER NOT NULL DEFAULT 0, writer TEXT, asked INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
INSERT INTO "responses" VALUES('resp_old','me',2000000000,CAST('{"id":"resp_old","object":"response","created_at":2000000000,"completed_at":null,"status":"in_progress","incomplete_details":null,"model":"m","previous_response_id":null,"instructions":null,"output":[],"error":null,"tools":[],"tool_choice":"auto","truncation":"disabled","parallel_tool_calls":true,"text":null,"top_p":1.0,"presence_penalty":0.0,"frequency_penalty":0.0,"top_logprobs":0,"temperature":1.0,"reasoning":null,"usage":null,"max_output_tokens":null,"max_tool_calls":null,"store":true,"background":true,"service_tier":"default","metadata":{"a":"b"},"safety_identifier":null,"prompt_cache_key":null,"conversation":{"id":"conv_1"}}' AS BLOB),CAST('[{"type":"message","id":"msg_old0000","role":"user","content":"hi","phase":null,"status":null}]' AS BLOB),3503,NULL,0);
CREATE TABLE talk (
    place INTEGER PRIMARY KEY, owner TEXT NOT NULL, conversation TEXT NOT NULL, id TEXT NOT NULL, data BLOB NOT NULL
);
INSERT INTO "talk" VALUES(1,'me','conv_1','msg_old0000',CAST('{"type":"message","id":"msg_old0000","role":"user","content":"hi","phase":null,"status":null}' AS BLOB));
INSERT INTO "talk" VALUES(2,'me','conv_1','msg_0',CAST('{"type":"message","id":"msg_0","role":"assistant","content":[{"type":"output_text","text":"ab","annotations":[],"logprobs":[]}],"phase":null,"status":"completed"}' AS BLOB));
CREATE TABLE writers (name TEXT PRIMARY KEY, beat REAL NOT NULL) WITHOUT ROWID;
CREATE INDEX by_age ON responses (created);
CREATE INDEX by_writer ON responses (writer) WHERE writer IS NOT NULL;
CREATE INDEX by_response ON items (response);
CREATE INDEX by_conversation ON talk (owner, conversation, place);
CREATE INDEX by_item ON talk (owner, id);
COMMIT;
PRAGMA user_version = 2;
