//! Sidecars that are served in the test's own process.

use std::os::unix::net::UnixListener as Bound;
use std::path::Path;
use std::sync::{Arc, Mutex};

use podvirt_api::error::chain;
use podvirt_proto::hooks::info::info_server::{Info, InfoServer};
use podvirt_proto::hooks::info::{HookPoint, InfoParams, InfoResult};
use podvirt_proto::hooks::v1alpha1;
use podvirt_proto::hooks::v1alpha3::callbacks_server::{Callbacks, CallbacksServer};
use podvirt_proto::hooks::v1alpha3::{
    OnDefineDomainParams, OnDefineDomainResult, PreCloudInitIsoParams, PreCloudInitIsoResult, ShutdownParams,
    ShutdownResult,
};
use serde_json::{Map, Value, json};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Request, Response, Status};

use super::*;
use crate::media::cloud_init::Kind;

const DOMAIN: &str = "<domain type='kvm'><name>shop_web</name><devices></devices></domain>";

/// A sidecar: it answers a domain with its name in a comment, and user data with its name at the end.
#[derive(Clone, Default)]
struct Fake {
    name: &'static str,
    versions: &'static [&'static str],
    points: &'static [(&'static str, i32)],
    /// What it answers in place of the domain.
    answer: Option<&'static str>,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Fake {
    fn note(&self, what: &str) {
        self.asked.lock().unwrap().push(format!("{} {what}", self.name));
    }

    fn define(&self, xml: &[u8], vmi: &[u8]) -> Result<Vec<u8>, Status> {
        self.note("OnDefineDomain");
        assert_eq!(vmi, b"{}");
        match self.answer {
            Some("no") => Err(Status::internal("it does not like the machine")),
            Some(answer) => Ok(answer.into()),
            None => Ok(format!("{}<!--{}-->", String::from_utf8_lossy(xml), self.name).into_bytes()),
        }
    }

    /// Serves in the directory of the sidecar with this number.
    fn serve(self, below: &Path, number: usize) {
        let directory = below.join(hook_sidecar(number));
        std::fs::create_dir(&directory).unwrap();
        let bound = Bound::bind(directory.join("a.sock")).unwrap();
        bound.set_nonblocking(true).unwrap();
        let listener = tokio::net::UnixListener::from_std(bound).unwrap();
        tokio::spawn(
            tonic::transport::Server::builder()
                .add_service(InfoServer::new(self.clone()))
                .add_service(v1alpha1::callbacks_server::CallbacksServer::new(self.clone()))
                .add_service(CallbacksServer::new(self))
                .serve_with_incoming(UnixListenerStream::new(listener)),
        );
    }
}

#[tonic::async_trait]
impl Info for Fake {
    async fn info(&self, _: Request<InfoParams>) -> Result<Response<InfoResult>, Status> {
        let hook_points = self
            .points
            .iter()
            .map(|(name, priority)| HookPoint { name: (*name).into(), priority: *priority });
        let versions = self.versions.iter().map(|version| (*version).into()).collect();
        Ok(Response::new(InfoResult { name: self.name.into(), versions, hook_points: hook_points.collect() }))
    }
}

#[tonic::async_trait]
impl v1alpha1::callbacks_server::Callbacks for Fake {
    async fn on_define_domain(
        &self,
        request: Request<v1alpha1::OnDefineDomainParams>,
    ) -> Result<Response<v1alpha1::OnDefineDomainResult>, Status> {
        self.note("by v1alpha1");
        let request = request.into_inner();
        let domain_xml = self.define(&request.domain_xml, &request.vmi)?;
        Ok(Response::new(v1alpha1::OnDefineDomainResult { domain_xml }))
    }
}

#[tonic::async_trait]
impl Callbacks for Fake {
    async fn on_define_domain(
        &self,
        request: Request<OnDefineDomainParams>,
    ) -> Result<Response<OnDefineDomainResult>, Status> {
        let request = request.into_inner();
        let domain_xml = self.define(&request.domain_xml, &request.vmi)?;
        Ok(Response::new(OnDefineDomainResult { domain_xml }))
    }

    async fn pre_cloud_init_iso(
        &self,
        request: Request<PreCloudInitIsoParams>,
    ) -> Result<Response<PreCloudInitIsoResult>, Status> {
        self.note("PreCloudInitIso");
        let mut data: Value = serde_json::from_slice(&request.into_inner().cloud_init_data).unwrap();
        data["UserData"] = format!("{}+{}", data["UserData"].as_str().unwrap(), self.name).into();
        let cloud_init_data = data.to_string().into_bytes();
        Ok(Response::new(PreCloudInitIsoResult { cloud_init_data, ..Default::default() }))
    }

    async fn shutdown(&self, _: Request<ShutdownParams>) -> Result<Response<ShutdownResult>, Status> {
        self.note("Shutdown");
        Ok(Response::new(ShutdownResult {}))
    }
}

const ALL: &[(&str, i32)] = &[(ON_DEFINE_DOMAIN, 0), (PRE_CLOUD_INIT_ISO, 0), (SHUTDOWN, 0)];

/// The sidecars as virt-launcher has collected them, and what they are asked.
async fn hooks(fakes: Vec<Fake>) -> (Result<Hooks, HookError>, Arc<Mutex<Vec<String>>>) {
    let (directory, asked) = (tempfile::tempdir().unwrap(), Arc::<Mutex<Vec<String>>>::default());
    let count = fakes.len();
    for (n, fake) in fakes.into_iter().enumerate() {
        Fake { asked: asked.clone(), ..fake }.serve(directory.path(), n);
    }
    (Hooks::collect(directory.path(), count, &|_| ()).await, asked)
}

fn seed() -> Seed {
    let meta = Map::from_iter([("instance-id".to_owned(), Value::from("web.shop"))]);
    Seed { kind: Kind::NoCloud, volume: "seed".into(), meta, user: b"user".into(), network: b"net".into() }
}

#[tokio::test]
async fn the_highest_priority_comes_first_and_names_decide_between_equals() {
    let fake = |name, points| Fake { name, versions: &["v1alpha3"], points, ..Fake::default() };
    let (hooks, asked) = hooks(vec![
        fake("b", &[(ON_DEFINE_DOMAIN, 1)]),
        fake("a", &[(ON_DEFINE_DOMAIN, 1)]),
        fake("c", &[(ON_DEFINE_DOMAIN, 7)]),
        fake("d", &[]),
    ])
    .await;
    let hooks = hooks.unwrap();
    let xml = hooks.on_define_domain(DOMAIN.into(), b"{}", &|_| ()).await.unwrap();
    assert_eq!(
        xml,
        format!("{DOMAIN}<!--c--><!--a--><!--b-->"),
        "each is given what the one before has made"
    );
    assert_eq!(*asked.lock().unwrap(), ["c OnDefineDomain", "a OnDefineDomain", "b OnDefineDomain"]);
    let authors = hooks.authors().unwrap();
    assert!(authors.starts_with("the hook sidecar hook-sidecar-2 (c), "), "{authors}");
    assert!(Hooks::default().authors().is_none());
}

#[tokio::test]
async fn a_sidecar_is_asked_by_its_highest_version_and_only_what_that_has() {
    let fake = |name, versions| Fake { name, versions, points: ALL, ..Fake::default() };
    let (hooks, asked) =
        hooks(vec![fake("old", &["v1alpha1"]), fake("two", &["v1alpha1", "v1alpha3", "v9"])]).await;
    let hooks = hooks.unwrap();
    hooks.on_define_domain(DOMAIN.into(), b"{}", &|_| ()).await.unwrap();
    let seed = hooks.pre_cloud_init_iso(seed(), b"{}", &|_| ()).await.unwrap();
    hooks.shutdown().await;
    assert_eq!((seed.user.as_slice(), seed.network.as_slice()), (b"user+two".as_slice(), b"net".as_slice()));
    assert_eq!(
        *asked.lock().unwrap(),
        [
            "old by v1alpha1",
            "old OnDefineDomain",
            "two OnDefineDomain",
            "two PreCloudInitIso",
            "two Shutdown"
        ]
    );
}

#[tokio::test]
async fn a_sidecar_of_other_versions_is_refused() {
    let fake = Fake { name: "new", versions: &["v1beta1"], points: ALL, ..Fake::default() };
    let error = hooks(vec![fake]).await.0.unwrap_err().to_string();
    assert!(
        error.contains("hook-sidecar-0 (new)") && error.contains("it speaks v1beta1; one of v1alpha3"),
        "{error}"
    );
}

#[tokio::test]
async fn an_answer_that_cannot_be_used_is_told_with_its_sidecar() {
    for (answer, why) in [
        ("no", "it does not like the machine"),
        ("", "its answer is no domain"),
        ("<domain type='kvm'><name>other</name><devices></devices></domain>", "a domain called 'other'"),
    ] {
        let fake =
            Fake { name: "x", versions: &["v1alpha3"], points: ALL, answer: Some(answer), ..Fake::default() };
        let error = hooks(vec![fake]).await.0.unwrap().on_define_domain(DOMAIN.into(), b"{}", &|_| ()).await;
        let error = chain(&error.unwrap_err());
        assert!(error.starts_with("the hook sidecar hook-sidecar-0 (x): OnDefineDomain: "), "{error}");
        assert!(error.contains(why), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_sidecar_without_a_socket_is_waited_for_by_its_name() {
    let directory = tempfile::tempdir().unwrap();
    // What a sidecar that has ended leaves accepts no more.
    let left = directory.path().join(hook_sidecar(0));
    std::fs::create_dir(&left).unwrap();
    drop(Bound::bind(left.join("a.sock")).unwrap());
    let told = Mutex::new(String::new());
    let waits = |what| *told.lock().unwrap() = what;
    let collecting = Hooks::collect(directory.path(), 1, &waits);
    assert!(tokio::time::timeout(Duration::from_secs(600), collecting).await.is_err(), "it waits");
    assert!(told.lock().unwrap().contains("hook-sidecar-0"), "{told:?}");
}

#[test]
fn what_a_cloud_init_gets_is_given_in_both_forms_and_taken_in_either() {
    let given = cloud_init::given(&seed()).unwrap();
    let data: Value = serde_json::from_slice(&given.data).unwrap();
    assert_eq!(
        data,
        json!({"DataSource": "noCloud", "NoCloudMetaData": {"instance-id": "web.shop"}, "ConfigDriveMetaData": null,
            "UserData": "user", "NetworkData": "net", "DevicesData": null, "VolumeName": "seed"})
    );
    let source: Value = serde_json::from_slice(&given.source).unwrap();
    assert_eq!(source, json!({"userData": "user", "networkData": "net"}));

    let answer = |data: Value, source: &str| cloud_init::Answer {
        data: data.to_string().into_bytes(),
        source: source.into(),
    };
    let mut changed = data.clone();
    changed["NoCloudMetaData"] = json!({"instance-id": "i", "public-keys": {"a": "b"}});
    changed["UserData"] = "other".into();
    let taken = cloud_init::taken(seed(), &answer(changed, "{}")).unwrap();
    assert_eq!(
        (taken.user.as_slice(), &taken.meta["public-keys"]),
        (b"other".as_slice(), &json!({"a": "b"}))
    );
    // Without a description of the machine the older form counts.
    let old =
        cloud_init::taken(seed(), &answer(json!({"UserData": "x"}), "{\"userData\": \"old\"}")).unwrap();
    assert_eq!(
        (old.user.as_slice(), old.network.as_slice(), old.meta),
        (b"old".as_slice(), b"".as_slice(), seed().meta)
    );
    let mut elsewhere = data;
    elsewhere["DataSource"] = "configDrive".into();
    for (data, source, why) in [
        (elsewhere, "", "'noCloud' is needed"),
        (json!({}), "", "has no cloudInitNoCloudSource"),
        (json!({}), "{", "is no JSON"),
    ] {
        let error = cloud_init::taken(seed(), &answer(data, source)).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
    let mut binary = seed();
    binary.user = vec![0xff];
    let error = cloud_init::given(&binary).err().unwrap().to_string();
    assert_eq!(error, "the user data of the volume seed is no text");
}
