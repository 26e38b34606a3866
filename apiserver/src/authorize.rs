//! Whether a user may: one SubjectAccessReview for each request.

use http::Method;
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use kube::api::PostParams;
use kube::{Api, Client};

use crate::front_proxy::User;
use crate::status::Status;
use crate::target::{GROUP, Target};

/// Verb of a method, as upstream maps them.
fn verb(method: &Method) -> Option<&'static str> {
    match *method {
        Method::GET => Some("get"),
        Method::PUT => Some("update"),
        Method::POST => Some("create"),
        Method::PATCH => Some("patch"),
        Method::DELETE => Some("delete"),
        _ => None,
    }
}

/// What `method` on `target` is to the API server; `None` for methods that nothing has.
///
/// Ports and protocols are no part of it: a user who may forward may forward to any port.
pub fn attributes(method: &Method, target: &Target) -> Option<ResourceAttributes> {
    let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    Some(ResourceAttributes {
        group: Some(GROUP.to_owned()),
        version: Some(target.version.to_owned()),
        namespace: Some(target.namespace.clone()),
        resource: Some(target.resource.clone()),
        name: some(&target.name),
        subresource: some(&target.subresource),
        verb: Some(verb(method)?.to_owned()),
        ..ResourceAttributes::default()
    })
}

/// The question whether `user` may.
fn question(user: &User, attributes: ResourceAttributes) -> SubjectAccessReview {
    SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            user: Some(user.name.clone()),
            uid: user.uid.clone(),
            groups: Some(user.groups.clone()),
            extra: (!user.extra.is_empty()).then(|| user.extra.clone()),
            resource_attributes: Some(attributes),
            ..SubjectAccessReviewSpec::default()
        },
        ..SubjectAccessReview::default()
    }
}

/// Asks the API server whether `user` may do `method` to `target`.
///
/// # Errors
///
/// The user may not, or the API server cannot be asked.
pub async fn authorize(client: &Client, user: &User, method: &Method, target: &Target) -> Result<(), Status> {
    let Some(attributes) = attributes(method, target) else {
        let message = format!("{method} is not allowed; GET and PUT are");
        return Err(Status::new(http::StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed", message));
    };
    allowed(client, user, attributes).await
}

/// Asks the API server whether `user` may.
///
/// # Errors
///
/// The user may not, or the API server cannot be asked.
pub async fn allowed(client: &Client, user: &User, attributes: ResourceAttributes) -> Result<(), Status> {
    let api: Api<SubjectAccessReview> = Api::all(client.clone());
    let question = question(user, attributes.clone());
    let answer = api.create(&PostParams::default(), &question).await.map_err(|error| {
        // What the API server thinks of *our* question is not the user's business.
        tracing::error!(error = &error as &dyn std::error::Error, "SubjectAccessReview failed");
        Status::internal("the user's permission cannot be looked up")
    })?;
    let status = answer.status.unwrap_or_default();
    if status.allowed && !status.denied.unwrap_or(false) {
        return Ok(());
    }
    let reason =
        status.reason.filter(|reason| !reason.is_empty()).map(|r| format!(": {r}")).unwrap_or_default();
    let [resource, name, verb] =
        [attributes.resource, attributes.name, attributes.verb].map(Option::unwrap_or_default);
    let subresource = attributes.subresource.map(|name| format!("/{name}")).unwrap_or_default();
    let place = match attributes.namespace {
        Some(namespace) => format!("in the namespace \"{namespace}\""),
        None => "at the cluster scope".to_owned(),
    };
    Err(Status::forbidden(format!(
        "{resource}.{GROUP} \"{name}\" is forbidden: User \"{}\" cannot {verb} resource \"{resource}{subresource}\" in \
         API group \"{GROUP}\" {place}{reason}",
        user.name,
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_question_names_user_verb_and_subresource() {
        let user = User {
            name: "jane".into(),
            uid: None,
            groups: vec!["devs".into()],
            extra: [("scopes".to_owned(), vec!["view".to_owned()])].into(),
        };
        for (method, path, verb, resource, subresource) in [
            (Method::PUT, "virtualmachines/vm1/start", "update", "virtualmachines", "start"),
            (Method::GET, "virtualmachineinstances/vm1/console", "get", "virtualmachineinstances", "console"),
            (Method::GET, "virtualmachines/vm1/portforward/22/tcp", "get", "virtualmachines", "portforward"),
            (
                Method::PUT,
                "virtualmachineinstances/vm1/sev/setupsession",
                "update",
                "virtualmachineinstances",
                "sev/setupsession",
            ),
        ] {
            let target = Target::parse(&format!("/apis/{GROUP}/v1/namespaces/ns/{path}")).unwrap();
            let spec = question(&user, attributes(&method, &target).unwrap()).spec;
            assert_eq!((spec.user.as_deref(), spec.groups), (Some("jane"), Some(user.groups.clone())));
            assert_eq!(spec.extra.as_ref(), Some(&user.extra));
            let asked = spec.resource_attributes.unwrap();
            assert_eq!(asked.verb.as_deref(), Some(verb));
            assert_eq!(asked.resource.as_deref(), Some(resource));
            assert_eq!(asked.subresource.as_deref(), Some(subresource));
            assert_eq!(asked.name.as_deref(), Some("vm1"));
            assert_eq!(asked.namespace.as_deref(), Some("ns"));
            assert_eq!(asked.group.as_deref(), Some("subresources.kubevirt.io"));
        }
        let target =
            Target::parse(&format!("/apis/{GROUP}/v1/namespaces/ns/virtualmachines/x/start")).unwrap();
        assert_eq!(attributes(&Method::OPTIONS, &target), None);
    }
}
