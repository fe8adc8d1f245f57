"""Push what a run learned to the Hugging Face hub: its deltas, an adapter or a plain model."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from retouch.clip.loading.hub import bars_on_a_terminal_only, explain_hub_errors
from retouch.errors import UserError
from retouch.export.export_model import ExportModel
from retouch.export.formats import Format
from retouch.export.write import Exported, export

if TYPE_CHECKING:
    from huggingface_hub import HfApi

_OF_THE_HUB = {".gitattributes"}
"""What the hub itself puts into a new repository."""


@dataclass(frozen=True)
class Pushed:
    """What was pushed, and where it is now."""

    repo: str
    """Its name on the hub."""
    url: str
    """The page of the commit."""
    revision: str
    """The commit, by which exactly these files can be named."""
    private: bool
    """Whether only its owner sees it."""
    exported: Exported
    """What was written, except that its folder is gone."""


def push(
    model: ExportModel,
    repo: str,
    *,
    to: Format = "deltas",
    private: bool = False,
    overwrite: bool = False,
) -> Pushed:
    """Write an export and push it to the hub as one commit, with its model card.

    It is written, loaded again and compared as by `export`, and what the hub then has is compared
    with it by size and checksum. A repository that has files is not touched without `overwrite`.

    Args:
        model: The model, from `of_run` or `of_model`.
        repo: The name on the hub, `OWNER/NAME`.
        to: What to push: `deltas` of a run, or any other format of `export`.
        private: Create a repository that only its owner sees.
        overwrite: Replace the files of a repository that exists; its history keeps the old ones.
    """
    from huggingface_hub import HfApi

    api = HfApi(library_name="retouch")
    if repo.count("/") != 1:
        raise UserError(f"{repo!r} is not a name on the hub; write OWNER/NAME, such as alice/birds")
    with explain_hub_errors(repo):
        exists = _check_repo(api, repo, private, overwrite)
    with TemporaryDirectory() as temporary:
        exported = export(model, to, Path(temporary) / "export")
        with explain_hub_errors(repo), bars_on_a_terminal_only():
            if not exists:
                api.create_repo(repo, private=private, exist_ok=True)
            commit = api.upload_folder(
                repo_id=repo,
                folder_path=exported.folder,
                commit_message="Pushed by retouch",
                delete_patterns="*" if exists else None,
            )
            _verify(api, repo, commit.oid, exported)
            is_private = bool(api.model_info(repo).private)
    return Pushed(repo, str(commit.commit_url), str(commit.oid), is_private, exported)


def _check_repo(api: "HfApi", repo: str, private: bool, overwrite: bool) -> bool:
    """Whether the repository exists; refused if its files would be replaced, or seen by others."""
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    try:
        info = api.model_info(repo)
    except GatedRepoError:
        raise
    except RepositoryNotFoundError:
        api.whoami()  # not logged in looks the same
        return False
    if private and not info.private:
        raise UserError(
            f"{repo} exists on the hub and is public; make it private in its settings there, or "
            "choose another name"
        )
    files = {file.rfilename for file in info.siblings or []} - _OF_THE_HUB
    if files and not overwrite:
        raise UserError(
            f"{repo} exists on the hub and has files already, such as {min(files)}; choose another "
            "name, or replace them (the hub keeps them in its history)",
            argument="overwrite=True",
        )
    return True


def _verify(api: "HfApi", repo: str, revision: str, exported: Exported) -> None:
    """Compare what the hub has with what was written: names, sizes, checksums of large files."""
    from huggingface_hub import RepoFile

    tree = api.list_repo_tree(repo, recursive=True, revision=revision)
    remote = {file.path: file for file in tree if isinstance(file, RepoFile)}
    for name in exported.files:
        local, file = exported.folder / name, remote.get(name)
        same = file is not None and file.size == local.stat().st_size
        if same and file is not None and file.lfs is not None:
            with local.open("rb") as content:
                same = hashlib.file_digest(content, "sha256").hexdigest() == file.lfs.sha256
        if not same:
            raise UserError(
                f"{name} on the hub differs from what was pushed to {repo}; push again",
                argument="overwrite=True",
            )
