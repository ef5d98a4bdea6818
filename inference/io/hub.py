"""Folders of models on the Hugging Face hub."""

from pathlib import Path

from probattn.inference.imports import extra
from probattn.inference.io.checkpoint import CheckpointError

FILES = ("*.json", "*.safetensors", "README.md")
"""Patterns of the files of a model, the only ones that are downloaded and uploaded; none of them can hold code."""


def find_pretrained(
    name: str | Path,
    *,
    force_download: bool = False,
    token: str | bool | None = None,
    cache_dir: str | Path | None = None,
    local_files_only: bool = False,
    revision: str | None = None,
) -> Path:
    """Return the folder of a model: one that exists, or the download of a model of the hub.

    Args:
        name: a folder, or the name of a repository on the hub, such as ``"user/model"``.
        force_download: download again what the cache has.
        token: access token of the hub, or True for the one of ``hf auth login``; None uses it if there is one.
        cache_dir: folder of downloads; default: that of ``huggingface_hub``.
        local_files_only: use the cache only.
        revision: branch, tag or commit.

    Raises:
        MissingExtraError: no folder of that name, and ``huggingface_hub`` is not installed.
        CheckpointError: the hub has no such model, or cannot be reached.
    """
    if Path(name).is_dir():
        return Path(name)
    with extra("huggingface", needed_by=f"{name} is not a folder here, and a model of the Hugging Face hub"):
        from huggingface_hub import snapshot_download
    try:
        folder = snapshot_download(
            str(name),
            allow_patterns=list(FILES),
            force_download=force_download,
            token=token,
            cache_dir=cache_dir,
            local_files_only=local_files_only,
            revision=revision,
            library_name="probattn",
        )
    except Exception as error:  # of many classes, those of the network included
        reason = " ".join(str(error).split()).rstrip(".")
        raise CheckpointError(
            f"{name} is neither a folder here nor a model that can be had from the Hugging Face hub: {reason}"
        ) from error
    return Path(folder)


def upload_pretrained(
    folder: str | Path,
    repo_id: str,
    *,
    commit_message: str = "Upload model with probattn",
    private: bool | None = None,
    token: str | bool | None = None,
    branch: str | None = None,
    create_pr: bool | None = None,
) -> str:
    """Upload a folder of :func:`~probattn.inference.save_pretrained` to the hub.

    Args:
        folder: the folder.
        repo_id: repository, such as ``"user/model"``; created if it does not exist.
        commit_message: message of the commit.
        private: visibility of a new repository; None: the default of your account.
        token: as for :func:`find_pretrained`.
        branch: branch of the commit; created if it does not exist; default: ``main``.
        create_pr: open a pull request instead of committing to the branch.

    Returns:
        Address of the commit.

    Raises:
        MissingExtraError: ``huggingface_hub`` is not installed.
        FileNotFoundError: the folder does not exist.
        Exception: errors of ``huggingface_hub``, such as those of the network and of permissions.
    """
    with extra("huggingface", needed_by="push_to_hub"):
        from huggingface_hub import HfApi
    if not Path(folder).is_dir():
        raise FileNotFoundError(f"{folder} is no folder; save the model there first")
    api = HfApi(token=token)
    repo_id = api.create_repo(repo_id, private=private, exist_ok=True).repo_id
    if branch is not None:
        api.create_branch(repo_id, branch=branch, exist_ok=True)
    done = api.upload_folder(
        repo_id=repo_id,
        folder_path=folder,
        commit_message=commit_message,
        revision=branch,
        create_pr=create_pr,
        allow_patterns=list(FILES),
    )
    return str(done.commit_url)
