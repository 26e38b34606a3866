use std::io::Read;
use std::os::unix::fs::FileExt;

use flate2::read::MultiGzDecoder;
use http_body_util::BodyExt;
use podvirt_api::export::TOKEN_HEADER;
use serde_json::{Value, json};
use tempfile::TempDir;
use tower::ServiceExt;

use super::*;

/// An exporter of one claim with a file system, served in all formats.
struct Exporter {
    directory: TempDir,
    config: Config,
}

impl Exporter {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        for name in ["claim", "data"] {
            std::fs::create_dir(directory.path().join(name)).unwrap();
        }
        std::fs::write(directory.path().join("token"), "secret").unwrap();
        let path = |name: &str| directory.path().join(name);
        let of = |file: &str| Some(format!("/volumes/claim/{file}"));
        let config = Config {
            listen: "127.0.0.1:0".parse().unwrap(),
            certificate: path("tls.crt"),
            key: path("tls.key"),
            token: path("token"),
            deadline: None,
            volumes: vec![Volume {
                path: path("claim"),
                raw: of("disk.img"),
                gzip: of("disk.img.gz"),
                directory: of("dir/"),
                archive: of("disk.tar.gz"),
            }],
            backup: None,
            manifests: Some("/manifests/all".into()),
            secret: Some("/manifests/secret".into()),
            data: path("data"),
        };
        Exporter { directory, config }
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.directory.path().join(name)
    }

    async fn ask(&self, path: &str, fields: &[(&str, &str)]) -> (StatusCode, http::HeaderMap, Vec<u8>) {
        let mut request = Request::get(path);
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        let answer = router(&self.config).oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
        let (head, body) = answer.into_parts();
        (head.status, head.headers, body.collect().await.unwrap().to_bytes().to_vec())
    }

    async fn get(&self, path: &str) -> Vec<u8> {
        let (code, _, body) = self.ask(path, &[(TOKEN_HEADER, "secret")]).await;
        assert_eq!(code, StatusCode::OK, "{path}: {}", String::from_utf8_lossy(&body));
        body
    }
}

/// A sparse image, longer than a few pieces and no multiple of one.
fn image(path: &std::path::Path) -> Vec<u8> {
    let file = std::fs::File::create(path).unwrap();
    file.set_len(5 * (1 << 20) + 777).unwrap();
    let noise: Vec<u8> =
        (0..300_000_u32).map(|n| u8::try_from(n.wrapping_mul(2_654_435_761) >> 24).unwrap()).collect();
    file.write_all_at(&noise, 1_000_003).unwrap();
    file.write_all_at(b"end", 5 * (1 << 20) + 774).unwrap();
    std::fs::read(path).unwrap()
}

fn unpacked(bytes: &[u8]) -> Vec<u8> {
    let mut plain = Vec::new();
    MultiGzDecoder::new(bytes).read_to_end(&mut plain).unwrap();
    plain
}

#[tokio::test]
async fn an_image_is_served_whole_in_part_and_compressed() {
    let exporter = Exporter::new();
    let bytes = image(&exporter.path("claim/disk.img"));
    assert!(exporter.get("/volumes/claim/disk.img").await == bytes);
    let packed = exporter.get("/volumes/claim/disk.img.gz").await;
    assert!(packed.len() < 400_000, "holes take no room: {}", packed.len());
    assert!(unpacked(&packed) == bytes);

    let token = (TOKEN_HEADER, "secret");
    let (code, head, part) =
        exporter.ask("/volumes/claim/disk.img", &[token, ("range", "bytes=1000000-1000009")]).await;
    assert_eq!((code, part.as_slice()), (StatusCode::PARTIAL_CONTENT, &bytes[1_000_000..1_000_010]));
    assert_eq!(head["content-range"], format!("bytes 1000000-1000009/{}", bytes.len()));
    let tag = head["etag"].to_str().unwrap().to_owned();
    let rest = [token, ("range", "bytes=5000000-"), ("if-range", &tag)];
    let (code, _, part) = exporter.ask("/volumes/claim/disk.img", &rest).await;
    assert_eq!(code, StatusCode::PARTIAL_CONTENT);
    assert!(part == bytes[5_000_000..]);
    // A part of an image that has changed since is of no use.
    let other = [token, ("range", "bytes=5000000-"), ("if-range", "\"other\"")];
    let (code, _, whole) = exporter.ask("/volumes/claim/disk.img", &other).await;
    assert_eq!((code, whole.len()), (StatusCode::OK, bytes.len()));
    let (code, head, _) =
        exporter.ask("/volumes/claim/disk.img", &[token, ("range", "bytes=9999999-")]).await;
    assert_eq!(code, StatusCode::RANGE_NOT_SATISFIABLE);
    assert_eq!(head["content-range"], format!("bytes */{}", bytes.len()));
}

#[tokio::test]
async fn an_empty_image_is_an_empty_file() {
    let exporter = Exporter::new();
    std::fs::write(exporter.path("claim/disk.img"), "").unwrap();
    assert_eq!(exporter.get("/volumes/claim/disk.img").await, b"");
    assert_eq!(unpacked(&exporter.get("/volumes/claim/disk.img.gz").await), b"");
}

#[tokio::test]
async fn without_the_token_nothing_is_told_but_readiness() {
    let exporter = Exporter::new();
    std::fs::write(exporter.path("claim/disk.img"), "content").unwrap();
    let paths = [
        "/volumes/claim/disk.img",
        "/volumes/claim/disk.img.gz",
        "/volumes/claim/dir/",
        "/volumes/claim/disk.tar.gz",
        "/internal/manifests/all",
        "/external/manifests/secret",
    ];
    for path in paths {
        for fields in
            [&[][..], &[(TOKEN_HEADER, "secre")], &[(TOKEN_HEADER, "secret2")], &[(TOKEN_HEADER, "")]]
        {
            let (code, _, body) = exporter.ask(path, fields).await;
            assert_eq!(code, StatusCode::UNAUTHORIZED, "{path} {fields:?}");
            assert!(!String::from_utf8_lossy(&body).contains("secret"));
        }
    }
    let (code, _, body) = exporter.ask("/volumes/claim/disk.img?x-kubevirt-export-token=secret", &[]).await;
    assert_eq!((code, body.as_slice()), (StatusCode::OK, &b"content"[..]));
    assert_eq!(exporter.ask("/exportready", &[]).await.0, StatusCode::OK);
    // A token that says nothing lets no one in.
    std::fs::write(exporter.path("token"), "").unwrap();
    let (code, ..) = exporter.ask("/volumes/claim/disk.img", &[(TOKEN_HEADER, "")]).await;
    assert_eq!(code, StatusCode::INTERNAL_SERVER_ERROR);
}

#[tokio::test]
async fn no_link_leads_out_of_a_claim() {
    let exporter = Exporter::new();
    std::fs::create_dir(exporter.path("claim/sub")).unwrap();
    std::fs::write(exporter.path("claim/sub/file"), "inside").unwrap();
    std::fs::write(exporter.path("outside"), "outside").unwrap();
    std::os::unix::fs::symlink("../outside", exporter.path("claim/relative")).unwrap();
    std::os::unix::fs::symlink(exporter.path("outside"), exporter.path("claim/disk.img")).unwrap();
    std::os::unix::fs::symlink("/sub/file", exporter.path("claim/within")).unwrap();
    let token = [(TOKEN_HEADER, "secret")];
    for path in
        ["dir/relative", "dir/disk.img", "dir/../../outside", "dir/%2e%2e/outside", "disk.img", "disk.img.gz"]
    {
        let (code, _, body) = exporter.ask(&format!("/volumes/claim/{path}"), &token).await;
        assert_eq!(code, StatusCode::NOT_FOUND, "{path}: {}", String::from_utf8_lossy(&body));
    }
    // Seen from the claim it is the root.
    assert_eq!(exporter.get("/volumes/claim/dir/within").await, b"inside");
    assert_eq!(exporter.get("/volumes/claim/dir/sub/file").await, b"inside");
    let page = String::from_utf8(exporter.get("/volumes/claim/dir/").await).unwrap();
    assert!(page.contains("<a href=\"sub/\">sub/</a>"), "{page}");
    let (code, head, _) = exporter.ask("/volumes/claim/dir/sub", &token).await;
    assert_eq!(
        (code, head["location"].to_str().unwrap()),
        (StatusCode::MOVED_PERMANENTLY, "/volumes/claim/dir/sub/")
    );
}

#[tokio::test]
async fn files_are_packed_with_their_holes() {
    let exporter = Exporter::new();
    let bytes = image(&exporter.path("claim/big"));
    std::fs::create_dir_all(exporter.path("claim/a/b")).unwrap();
    std::fs::write(exporter.path("claim/a/b/small"), "text").unwrap();
    std::os::unix::fs::symlink("/token/token", exporter.path("claim/link")).unwrap();
    std::fs::create_dir(exporter.path("claim/lost+found")).unwrap();
    // Names at the edge of what fits into a header, with their prefix and without.
    let lengths = [1, 97, 98, 99, 100, 101, 200, 254];
    for length in lengths {
        std::fs::write(exporter.path("claim").join("n".repeat(length)), "name").unwrap();
    }
    std::fs::write(exporter.path("claim/.hidden"), "name").unwrap();
    let plain = unpacked(&exporter.get("/volumes/claim/disk.tar.gz").await);
    let mut archive = tar::Archive::new(plain.as_slice());
    let entries = archive.entries().unwrap().map(|entry| entry.unwrap().path_bytes().into_owned());
    let names: Vec<Vec<u8>> = entries.collect();
    assert!(names.iter().all(|name| name == b"." || name.starts_with(b"./")), "{names:?}");
    for length in lengths {
        assert!(names.contains(&format!("./{}", "n".repeat(length)).into_bytes()), "{length}");
    }
    assert!(plain.len() < 1_500_000, "{}", plain.len());
    let mut archive = tar::Archive::new(plain.as_slice());
    let target = tempfile::tempdir().unwrap();
    archive.unpack(target.path()).unwrap();
    let at = |name: &str| target.path().join(name);
    assert!(std::fs::read(at("big")).unwrap() == bytes);
    assert_eq!(std::fs::read_to_string(at("a/b/small")).unwrap(), "text");
    assert_eq!(std::fs::read_link(at("link")).unwrap(), Path::new("/token/token"));
    assert!(!at("lost+found").exists());
}

#[tokio::test]
async fn manifests_say_where_disks_are_and_how_to_be_let_in() {
    let exporter = Exporter::new();
    let put = |name: &str, value: Value| {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        std::fs::write(exporter.path("data").join(name), text).unwrap();
    };
    put("export-name", json!("x"));
    put("internal_host", json!("virt-export-x.ns.svc"));
    put(
        "internal_ca_cm",
        json!({"kind": "ConfigMap", "metadata": {"name": "export-ca-cm-x"}, "data": {"ca.pem": "PEM"}}),
    );
    let blank = json!({"http": {"url": ""}});
    put(
        "virtualmachine-manifest",
        json!({"kind": "VirtualMachine", "spec": {
            "dataVolumeTemplates": [{"metadata": {"name": "claim"}, "spec": {"source": blank}}],
            "template": {"spec": {"volumes": [
                {"name": "a", "dataVolume": {"name": "claim"}},
                {"name": "b", "persistentVolumeClaim": {"claimName": "other"}},
                {"name": "c", "containerDisk": {"image": "i"}},
            ]}},
        }}),
    );
    put("dv-other", json!({"kind": "DataVolume", "metadata": {"name": "other"}, "spec": {"source": blank}}));
    let list: Value = serde_json::from_slice(&exporter.get("/internal/manifests/all").await).unwrap();
    let items = list["items"].as_array().unwrap();
    let kinds: Vec<&Value> = items.iter().map(|item| &item["kind"]).collect();
    assert_eq!(kinds, ["ConfigMap", "VirtualMachine", "DataVolume"]);
    let http = &items[1]["spec"]["dataVolumeTemplates"][0]["spec"]["source"]["http"];
    let url = "https://virt-export-x.ns.svc/volumes/claim/disk.img.gz";
    assert_eq!(
        *http,
        json!({"url": url, "certConfigMap": "export-ca-cm-x", "secretExtraHeaders": ["header-secret-x"]})
    );
    let yaml = [(TOKEN_HEADER, "secret"), ("accept", "application/yaml")];
    let (_, head, body) = exporter.ask("/internal/manifests/secret", &yaml).await;
    let text = String::from_utf8(body).unwrap();
    assert_eq!(head["content-type"], "application/yaml");
    assert!(text.contains("x-kubevirt-export-token:secret") && text.ends_with("---\n"), "{text}");
    // Outside the cluster nothing leads to it.
    let (code, ..) = exporter.ask("/external/manifests/all", &[(TOKEN_HEADER, "secret")]).await;
    assert_eq!(code, StatusCode::NOT_FOUND);
}
