//! Manifests with which another cluster, or another namespace, makes the machine anew of what is exported here.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use axum::Router;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use podvirt_api::export::{
    TOKEN_HEADER, data, data_volume_key, header_secret_name, restored_name, volume_path,
};
use serde_json::{Value, json};

use super::token::Token;
use super::{Config, Refusal, failed};

/// For clients in the cluster, or outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum From {
    Inside,
    Outside,
}

/// The routes.
pub(super) fn router(config: &Config) -> Router {
    let mut routes = Router::new();
    let gzips: Arc<[String]> = config.volumes.iter().filter_map(|volume| volume.gzip.clone()).collect();
    let place: Arc<Path> = config.data.as_path().into();
    let token = Arc::new(Token::new(config.token.clone()));
    for (start, from) in [("/internal", From::Inside), ("/external", From::Outside)] {
        if let Some(path) = &config.manifests {
            let (place, gzips) = (place.clone(), gzips.clone());
            let handler = async move |headers: HeaderMap| told(all(&place, &gzips, from).await, &headers);
            routes = routes.route(&format!("{start}{path}"), get(handler));
        }
        if let Some(path) = &config.secret {
            let (place, token) = (place.clone(), token.clone());
            let handler = async move |headers: HeaderMap| told(secret(&place, &token).await, &headers);
            routes = routes.route(&format!("{start}{path}"), get(handler));
        }
    }
    routes
}

/// The answer in the form that the client takes.
fn told(objects: Result<Vec<Value>, Refusal>, headers: &HeaderMap) -> Response {
    let objects = match objects {
        Ok(objects) => objects,
        Err(refusal) => return refusal.into_response(),
    };
    let wants_yaml = headers.get(header::ACCEPT).is_some_and(|kind| kind == "application/yaml");
    let text = if wants_yaml {
        let documents =
            objects.iter().map(|object| serde_saphyr::to_string(object).map(|text| format!("{text}---\n")));
        documents.collect::<Result<String, _>>().map_err(|error| error.to_string())
    } else {
        let list = json!({"apiVersion": "v1", "kind": "List", "metadata": {}, "items": objects});
        serde_json::to_string_pretty(&list).map_err(|error| error.to_string())
    };
    let kind = if wants_yaml { "application/yaml" } else { "application/json" };
    match text {
        Ok(text) => ([(header::CONTENT_TYPE, kind)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error).into_response(),
    }
}

async fn text(place: &Path, name: &str) -> Result<String, Refusal> {
    let path: PathBuf = place.join(name);
    tokio::fs::read_to_string(&path).await.map_err(|error| failed(&path, &error))
}

async fn object(place: &Path, name: &str) -> Result<Value, Refusal> {
    let text = text(place, name).await?;
    serde_json::from_str(&text).map_err(|error| failed(&place.join(name), &error.into()))
}

async fn secret(place: &Path, token: &Token) -> Result<Vec<Value>, Refusal> {
    let export = text(place, data::EXPORT).await?;
    let token = token.read().await.map_err(|error| failed(Path::new("token"), &error))?;
    Ok(vec![json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": header_secret_name(&export)},
        "stringData": {"token": format!("{TOKEN_HEADER}:{token}")},
    })])
}

async fn all(place: &Path, gzips: &[String], from: From) -> Result<Vec<Value>, Refusal> {
    let (host, ca) = match from {
        From::Inside => (data::INTERNAL_HOST, data::INTERNAL_CA),
        From::Outside => (data::EXTERNAL_HOST, data::EXTERNAL_CA),
    };
    let export = text(place, data::EXPORT).await?;
    let host = text(place, host).await?;
    let ca = object(place, ca).await?;
    let mut machine = object(place, data::MACHINE).await?;
    let name = ca["metadata"]["name"].clone();
    let source = |claim: &str| {
        let served = |claim: &str| {
            let path = volume_path(claim, "disk.img.gz");
            gzips.contains(&path).then(|| format!("https://{host}{path}"))
        };
        let url = served(claim).or_else(|| served(&restored_name(&export, claim)));
        json!({"http": {
            "url": url.unwrap_or_default(),
            "certConfigMap": name,
            "secretExtraHeaders": [header_secret_name(&export)],
        }})
    };
    for template in machine["spec"]["dataVolumeTemplates"].as_array_mut().into_iter().flatten() {
        let claim = template["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let blank = template["spec"]["source"]["http"]["url"] == "";
        if blank {
            template["spec"]["source"] = source(&claim);
        }
    }
    let claims = claims(&machine);
    let mut objects = vec![ca, machine];
    for claim in claims {
        let path = data_volume_key(&claim);
        if tokio::fs::try_exists(place.join(&path)).await.unwrap_or(false) {
            let mut volume = object(place, &path).await?;
            volume["spec"]["source"] = source(&claim);
            objects.push(volume);
        }
    }
    Ok(objects)
}

/// The claims of a machine's volumes.
fn claims(machine: &Value) -> Vec<String> {
    let volumes = machine["spec"]["template"]["spec"]["volumes"].as_array().into_iter().flatten();
    let named = volumes.filter_map(|volume| {
        volume["dataVolume"]["name"]
            .as_str()
            .or_else(|| volume["persistentVolumeClaim"]["claimName"].as_str())
    });
    named.map(str::to_owned).collect()
}
