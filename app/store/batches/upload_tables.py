"""SQL statements of the table of uploads, as methods of one connection. Their parts are rows of `files`."""

import msgspec

from antiphon.app.store.batches.file_tables import FileTables
from antiphon.app.store.batches.records import StoredFile, StoredUpload
from antiphon.app.store.sql_connection import SqlConnection

MAX_UPLOAD_PARTS = 1000
_decoder = msgspec.json.Decoder(StoredUpload)


class UploadTables:
    """Statements on uploads. The writes are called inside a transaction of the connection."""

    def __init__(self, connection: SqlConnection, files: FileTables) -> None:
        self._connection, self._files = connection, files

    # Writes

    def insert_upload(self, owner: str, upload: StoredUpload) -> None:
        """Inserts a pending upload."""
        self._connection.execute(
            "INSERT INTO uploads (id, owner, expires, status, data) VALUES (?, ?, ?, ?, ?)",
            (upload.id, owner, upload.expires_at, upload.status, msgspec.json.encode(upload)),
        )

    def complete_part(self, owner: str, upload: StoredUpload, part: StoredFile, writer: str) -> str | None:
        """Makes a part exist. Returns the reason why it must not, if there is one."""
        if not self._lock_pending(owner, upload):
            return "The upload has ended."
        parts = self._files.list_parts(owner, upload.id)
        if len(parts) >= MAX_UPLOAD_PARTS:
            return f"The upload has {MAX_UPLOAD_PARTS} parts already, which is the most."
        if sum(each.size for each in parts) + part.size > upload.size:
            return f"The parts would have more than the {upload.size} bytes that the upload was created with."
        return None if self._files.complete_file(part, writer) else "The part was deleted while it was uploaded."

    def end_upload(self, owner: str, ended: StoredUpload) -> bool:
        """Ends a pending upload and deletes its parts. Returns False if it has ended before."""
        if not self._lock_pending(owner, ended):
            return False
        statement = "UPDATE uploads SET status = ?, data = ? WHERE owner = ? AND id = ?"
        self._connection.execute(statement, (ended.status, msgspec.json.encode(ended), owner, ended.id))
        self._files.delete_parts(ended.id)
        return True

    def delete_expired(self, before: float) -> None:
        """Deletes the uploads whose time was over before a time, in seconds. Their parts expire by themselves."""
        self._connection.execute("DELETE FROM uploads WHERE expires < ?", (int(before),))

    def _lock_pending(self, owner: str, upload: StoredUpload) -> bool:
        """Keeps other servers from changing an upload until the commit. Returns whether it is pending."""
        statement = "UPDATE uploads SET status = status WHERE owner = ? AND id = ? AND status = 'pending'"
        return self._connection.execute(statement, (owner, upload.id)).rowcount == 1

    # Reads

    def count_uploads(self, owner: str, now: float) -> tuple[int, int]:
        """Returns the numbers of an owner's uploads: of those that take parts at a time, in seconds, and of all."""
        query = """
            SELECT count(CASE WHEN status = 'pending' AND expires > ? THEN 1 END), count(*) FROM uploads WHERE owner = ?
        """
        num_open, num_kept = self._connection.execute(query, (int(now), owner)).fetchone()
        return int(num_open), int(num_kept)

    def find_upload(self, owner: str, upload_id: str) -> StoredUpload | None:
        """Returns the owner's upload with this id, pending or not."""
        query = "SELECT data FROM uploads WHERE owner = ? AND id = ?"
        row = self._connection.execute(query, (owner, upload_id)).fetchone()
        return None if row is None else _decoder.decode(row[0])
