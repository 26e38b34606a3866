# shellcheck shell=bash
# Sourced by what makes images: OCI image layouts as directories, without an image tool. Layers are plain tar files,
# since the nodes would have to undo a compression again, and equal contents give equal layers.

# layer DIR TAR [TAR-OPTION...]: the contents of DIR as a layer; its digest goes beside it.
layer() { local dir=$1 tar=$2; shift 2
  tar --sort=name --mtime=@0 --numeric-owner --format=gnu "$@" -C "$dir" -cf "$tar" .
  sha256sum <"$tar" | cut -c1-64 >"$tar.sha256"; }

# image OUT REFERENCE CONFIG TAR...: an image of these layers, bottom first. CONFIG is the JSON of the OCI image
# configuration's "config". OUT is replaced at once, so that whoever reads it sees one image.
image() { local out=$1 reference=$2 config=$3 tmp tar digest diffs=() layers=(); shift 3
  tmp=$(mktemp -d "$out.XXXXXX"); mkdir "$tmp/blobs" "$tmp/blobs/sha256"
  for tar; do
    digest=$(cat "$tar.sha256"); diffs+=("\"sha256:$digest\"")
    ln -f "$tar" "$tmp/blobs/sha256/$digest" 2>/dev/null || cp "$tar" "$tmp/blobs/sha256/$digest"
    layers+=("$(descriptor application/vnd.oci.image.layer.v1.tar "$digest" "$tar")")
  done
  blob "$tmp" application/vnd.oci.image.config.v1+json \
    "{\"architecture\":\"amd64\",\"os\":\"linux\",\"config\":$config,\"rootfs\":{\"type\":\"layers\",\"diff_ids\":[$(join "${diffs[@]}")]}}"
  blob "$tmp" application/vnd.oci.image.manifest.v1+json \
    "{\"schemaVersion\":2,\"mediaType\":\"application/vnd.oci.image.manifest.v1+json\",\"config\":$blob,\"layers\":[$(join "${layers[@]}")]}"
  printf '{"schemaVersion":2,"manifests":[%s,"annotations":{"io.containerd.image.name":"%s"}}]}' "${blob%\}}" "$reference" >"$tmp/index.json"
  echo '{"imageLayoutVersion":"1.0.0"}' >"$tmp/oci-layout"
  chmod 755 "$tmp"; rm -rf "$out"; mv -T "$tmp" "$out"; }
# blob DIR TYPE TEXT: stores TEXT; its descriptor is in $blob.
blob() { local digest file; digest=$(printf %s "$3" | sha256sum | cut -c1-64); file=$1/blobs/sha256/$digest
  printf %s "$3" >"$file"; blob=$(descriptor "$2" "$digest" "$file"); }
descriptor() { printf '{"mediaType":"%s","digest":"sha256:%s","size":%s}' "$1" "$2" "$(stat -L -c %s "$3")"; }
join() { local IFS=,; echo "$*"; }
