"""The resource of a warehouse's store: what the YAML says, for the assets of users too."""

import os
import pickle
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster_aws.s3 import S3Resource

from kstreams_assets.errors import ConfigurationError
from kstreams_assets.orchestration.location import load_applications
from kstreams_assets.orchestration.upkeep import SOUND
from kstreams_assets.settings import ApplicationSettings
from kstreams_assets.store import ObjectPath, ObjectStoreSettings
from tests.orchestration.project import Project, attributes, messages_of
from tests.repository.test_damage import settings as backed_up
from tests.store.seaweed import SeaweedFS, seaweed
from tests.upkeep.test_verify import settings as whole

__all__ = ["backed_up", "seaweed", "whole"]

BUCKET = "s3://backups/shop"
KEYS = {"access_key_id": {"env": "STORE_KEY"}, "secret_access_key": {"env": "STORE_SECRET"}}


@pytest.fixture(autouse=True)
def no_aws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of AWS in the environment, so that only the YAML counts."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


def in_bucket(application_id: str = "shop", **more: Any) -> dict[str, Any]:
    """Attributes of an application whose warehouse is in a bucket."""
    store = {"endpoint": "https://store:9000", "region": "eu-central-1"}
    return attributes(application_id, **{"warehouse": BUCKET, "object_store": store, **more})


def resource_of(project: Project, key: str = "warehouse_store") -> S3Resource:
    """Of the definitions as they are loaded."""
    found = (project.load().resources or {})[key]
    assert isinstance(found, S3Resource)
    return found


class TestTheComponent:
    def test_makes_it_of_the_yaml(self, project: Project) -> None:
        project.write("shop", in_bucket())
        found = resource_of(project)
        assert (found.endpoint_url, found.region_name) == ("https://store:9000", "eu-central-1")
        assert found.profile_name is None
        assert found.use_ssl

    def test_names_keys_and_does_not_hold_them(
        self, project: Project, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("STORE_KEY", "the-key")
        monkeypatch.setenv("STORE_SECRET", "the-secret")
        project.write("shop", in_bucket(object_store=KEYS))
        found = resource_of(project)
        assert found.aws_secret_access_key == dg.EnvVar("STORE_SECRET")
        assert "the-secret" not in repr(found)

    def test_as_the_environment_says(
        self, project: Project, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("KSTREAMS_ASSETS_S3_ENDPOINT", "http://elsewhere:1")
        monkeypatch.setenv("AWS_REGION", "eu-west-1")
        project.write("shop", in_bucket(object_store={"profile": "backups"}))
        found = resource_of(project)
        assert (found.endpoint_url, found.use_ssl) == ("http://elsewhere:1", False)
        assert (found.region_name, found.profile_name) == ("eu-west-1", "backups")

    def test_makes_none_for_a_folder(self, project: Project) -> None:
        project.write("shop", attributes())
        assert [*(project.load().resources or {})] == ["kafka_shop"]

    def test_applications_with_one_store_share_it(self, project: Project) -> None:
        project.write("shop", in_bucket("shop"))
        project.write("bills", in_bucket("bills", warehouse="s3://backups/bills"))
        found = {*(project.load().resources or {})}
        assert found == {"warehouse_store", "kafka_shop", "kafka_bills"}

    def test_another_store_needs_another_key(self, project: Project) -> None:
        other = {"object_store": {"region": "us-east-1"}}
        project.write("shop", in_bucket("shop"))
        project.write("bills", in_bucket("bills", **other))
        load = load_applications(str(project.root / project.module / "definitions.py"))
        with pytest.raises(ConfigurationError, match="'warehouse_store'") as caught:
            load()
        assert "set object_store_resource in the YAML of one of them" in str(caught.value)
        project.write("bills", in_bucket("bills", **other, object_store_resource="bills_store"))
        assert resource_of(project, "bills_store").region_name == "us-east-1"
        assert resource_of(project).region_name == "eu-central-1"

    @pytest.mark.parametrize(
        ("more", "problem"),
        [
            ({"object_store_resource": "bills-store"}, "object_store_resource"),
            ({"object_store": {"access_key_id": {"env": "A"}}}, "must be set together"),
            ({"object_store": {"session_token": {"env": "A"}}}, "without .access_key_id"),
            (
                {
                    "object_store": {
                        "access_key_id": {"file": "a"},
                        "secret_access_key": {"env": "B"},
                    }
                },
                "is not {env: NAME}. Name an environment variable",
            ),
            (
                {"object_store": {"access_key_id": "hunter2", "secret_access_key": {"env": "B"}}},
                "A secret is given as a plain str",
            ),
        ],
    )
    def test_what_is_refused(self, project: Project, more: dict[str, Any], problem: str) -> None:
        project.write("shop", in_bucket(**more))
        with pytest.raises(Exception) as caught:  # noqa: PT011 (Dagster's own around ours)
            project.load()
        assert problem in messages_of(caught.value)
        assert "hunter2" not in messages_of(caught.value)


class TestInPython:
    def test_a_resource_becomes_settings_and_a_resource_again(self) -> None:
        given = S3Resource(
            endpoint_url="https://store:9000",
            region_name="eu-central-1",
            aws_access_key_id=dg.EnvVar("STORE_KEY"),
            aws_secret_access_key=dg.EnvVar("STORE_SECRET"),
        )
        settings = ObjectStoreSettings.of_resource(given)
        assert settings == ObjectStoreSettings.model_validate(
            {"endpoint": "https://store:9000", "region": "eu-central-1", **KEYS}
        )

    def test_its_keys_sign_requests_and_reach_no_environment(self) -> None:
        before = dict(os.environ)
        given = S3Resource(
            region_name="eu-central-1",
            aws_access_key_id="the-key",
            aws_secret_access_key="the-secret",
            aws_session_token="the-token",
        )
        place = ObjectPath.at(BUCKET, ObjectStoreSettings.of_resource(given))
        keys = place.access.keys()
        assert (keys.key, keys.secret, keys.token) == ("the-key", "the-secret", "the-token")
        assert dict(os.environ) == before
        assert "the-secret" not in f"{place.access!r} {place.access.settings.model_dump()}"

    def test_keys_of_this_process_are_carried_to_tasks(self) -> None:
        given = S3Resource(aws_access_key_id="the-key", aws_secret_access_key="the-secret")
        place = ObjectPath.at(BUCKET, ObjectStoreSettings.of_resource(given))
        task = pickle.loads(pickle.dumps(place))  # noqa: S301 (our own)
        assert task.access.keys() == place.access.keys()
        assert task.access.settings.access_key_id is None

    @pytest.mark.parametrize(
        ("fields", "problem"),
        [
            ({"use_unsigned_session": True}, "use_unsigned_session"),
            ({"verify": False}, "verify: false"),
            ({"use_ssl": False}, "use_ssl: false"),
        ],
    )
    def test_what_is_refused(self, fields: dict[str, Any], problem: str) -> None:
        with pytest.raises(ConfigurationError, match=problem):
            ObjectStoreSettings.of_resource(S3Resource(**fields))


@pytest.mark.store
def test_an_asset_of_a_user_shares_it_with_the_assets_of_the_component(
    project: Project,
    whole: ApplicationSettings,
    seaweed: SeaweedFS,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One run: the component's asset verifies a warehouse, that of the user lists and reads it."""
    monkeypatch.setattr("kstreams_assets.upkeep.verify.SETTLE_S", 0.2)
    monkeypatch.setenv("SEAWEED_KEY", seaweed.key)  # this process has read STORE_KEY before
    monkeypatch.setenv("SEAWEED_SECRET", seaweed.secret)
    keys = {"access_key_id": {"env": "SEAWEED_KEY"}, "secret_access_key": {"env": "SEAWEED_SECRET"}}
    store = {"endpoint": seaweed.endpoint, "region": "us-east-1", **keys}
    place = seaweed.place(**store)
    root = whole.warehouse.root
    assert isinstance(root, Path)
    files = [path for path in root.rglob("*") if path.is_file()]
    for path in files:
        (place / str(path.relative_to(root))).write_bytes(path.read_bytes())
    before = dict(os.environ)
    project.write("shop", in_bucket(warehouse=str(place), object_store=store))
    definitions = project.load()

    @dg.asset(deps=[dg.AssetKey(["shop", "verification"])])
    def largest_file(warehouse_store: S3Resource) -> dg.MaterializeResult:
        client = warehouse_store.get_client()
        listed = client.list_objects_v2(Bucket=place.bucket, Prefix=f"{place.key}/")["Contents"]
        largest = max(listed, key=lambda one: one["Size"])
        content = client.get_object(Bucket=place.bucket, Key=largest["Key"])["Body"].read()
        return dg.MaterializeResult(metadata={"files": len(listed), "bytes": len(content)})

    assets = [*(definitions.assets or []), largest_file]
    done = dg.materialize(
        assets,
        selection=["shop/verification", "largest_file"],
        resources={**(definitions.resources or {}), "spark": dg.ResourceDefinition.none_resource()},
    )
    assert done.success
    (sound,) = [e for e in done.get_asset_check_evaluations() if e.check_name == SOUND]
    assert sound.passed
    (event,) = done.asset_materializations_for_node("largest_file")
    assert event.metadata["bytes"].value == max(path.stat().st_size for path in files)
    assert isinstance(event.metadata["files"].value, int)
    assert event.metadata["files"].value >= len(files)  # the verification wrote its own
    assert dict(os.environ) == before
