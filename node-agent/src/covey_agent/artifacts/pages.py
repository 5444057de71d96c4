"""A project's page at the package index: fetched, and asked for one file."""

from covey_agent.artifacts import index
from covey_agent.artifacts.web import Web, corrupt, persist, unavailable

# PyPI's largest page (a project with 10,000 files) is 8 MB.
_MAX_PAGE_BYTES = 32 * 1024 * 1024


async def list_files(web: Web, project: str) -> tuple[index.IndexFile, ...]:
    """The project's page at the index."""
    url = index.project_url(web.settings, project)
    response, body = await persist(
        web.patience, f"index page of '{project}'", lambda: web.read(url, {"Accept": index.ACCEPT}, _MAX_PAGE_BYTES)
    )
    try:
        page = body.decode("utf-8")
        return index.parse_page(response.headers.get("content-type", ""), page, str(response.url))
    except ValueError as error:
        raise unavailable(f"{url} is no package index page: {error}. Check the index's URL.") from error


async def find_file(web: Web, project: str, filename: str, sha256: str) -> index.IndexFile:
    """The file of that name on the project's page; its digest must be the one that is known already."""
    for file in await list_files(web, project):
        if file.filename == filename:
            if file.sha256 != sha256:
                raise corrupt(
                    f"'{filename}' must have sha256 {sha256}; index {web.settings.url} now says "
                    f"'{file.sha256 or 'nothing'}'. Nothing was fetched."
                )
            return file
    raise unavailable(f"index {web.settings.url} no longer has '{filename}' of project '{project}'.")
