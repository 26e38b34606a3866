//! Which export a path names: a pure function.

use podvirt_api::export::{GROUP, PLURAL};

/// Versions of the API by which exports are named.
const VERSIONS: [&str; 2] = ["v1alpha1", "v1beta1"];

/// An export, and the path at its exporter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target<'a> {
    /// Its namespace.
    pub namespace: &'a str,
    /// Its name.
    pub name: &'a str,
    /// The rest of the path, without a slash in front.
    pub rest: &'a str,
}

/// The export that a path names, if it names one.
pub fn target(path: &str) -> Option<Target<'_>> {
    let mut parts = path.strip_prefix("/apis/").or_else(|| path.strip_prefix("/api/"))?.splitn(6, '/');
    let mut next = || parts.next();
    (next()? == GROUP).then_some(())?;
    VERSIONS.contains(&next()?).then_some(())?;
    (next()? == "namespaces").then_some(())?;
    let namespace = next()?;
    (next()? == PLURAL).then_some(())?;
    let (name, rest) = next()?.split_once('/')?;
    let is_name = |name: &str| {
        !name.is_empty()
            && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-.".contains(&b))
    };
    (is_name(namespace) && is_name(name)).then_some(Target { namespace, name, rest })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_upstreams() {
        let path =
            "/api/export.kubevirt.io/v1beta1/namespaces/shop/virtualmachineexports/x/volumes/c/disk.img";
        let wanted = Target { namespace: "shop", name: "x", rest: "volumes/c/disk.img" };
        assert_eq!(target(path), Some(wanted));
        assert_eq!(target(&path.replace("/api/", "/apis/").replace("v1beta1", "v1alpha1")), Some(wanted));
        for wrong in [
            "/",
            "/api/export.kubevirt.io/v2/namespaces/shop/virtualmachineexports/x/y",
            "/api/export.kubevirt.io/v1beta1/namespaces/shop/pods/x/y",
            "/api/export.kubevirt.io/v1beta1/namespaces/shop/virtualmachineexports/x",
            "/api/export.kubevirt.io/v1beta1/namespaces/sh%6fp/virtualmachineexports/x/y",
            "/api/export.kubevirt.io/v1beta1/namespaces//virtualmachineexports/x/y",
        ] {
            assert_eq!(target(wrong), None, "{wrong}");
        }
    }
}
