"""Write a file as a note on GitLab's merge request, in place of the one that an earlier pipeline wrote.

python .ci/gitlab_note.py FILE, in a merge request pipeline with REVIEW_TOKEN. The first line of FILE, a comment that no reader
sees, is what the earlier note is found by.
"""

import json
import os
import sys
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

PAGE = 100


def main() -> None:
    """Find the earlier note, replace it, or write the first."""
    body = Path(sys.argv[1]).read_text(encoding="utf-8")
    token = os.environ.get("REVIEW_TOKEN")
    if not token:
        print("note: REVIEW_TOKEN is not set (a fork, or none was made): the comment is among this job's artifacts")
        return
    names = ("CI_API_V4_URL", "CI_PROJECT_ID", "CI_MERGE_REQUEST_IID")
    api, project, request = (os.environ[name] for name in names)
    notes = f"{api}/projects/{project}/merge_requests/{request}/notes"
    try:
        earlier = _earlier(notes, token, body.splitlines()[0])
        method, url = ("PUT", f"{notes}/{earlier}") if earlier is not None else ("POST", notes)
        written = _call(method, url, token, {"body": body})
    except (HTTPError, URLError) as error:
        # The address and the answer; never the header that holds the token.
        mend = "REVIEW_TOKEN needs scope `api` and role Reporter, and must not have expired"
        sys.exit(f"error: GitLab does not take the note: {error}\n  to mend: {mend}")
    print(f"note {written['id']} {'replaced' if earlier is not None else 'written'}")


def _earlier(notes: str, token: str, marker: str) -> int | None:
    page = 1
    while True:
        found = _call("GET", f"{notes}?per_page={PAGE}&page={page}", token)
        for note in found:
            if not note.get("system") and note["body"].splitlines()[:1] == [marker]:
                return note["id"]
        if len(found) < PAGE:
            return None
        page += 1


def _call(method: str, url: str, token: str, content: dict[str, str] | None = None) -> object:
    data = json.dumps(content).encode() if content is not None else None
    headers = {"PRIVATE-TOKEN": token, "Content-Type": "application/json"}
    with urlopen(Request(url, data, headers, method=method), timeout=60) as answer:  # noqa: S310 (GitLab's own address)
        return json.load(answer)


if __name__ == "__main__":
    main()
