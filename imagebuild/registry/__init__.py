"""The distribution-spec 1.1 client: credentials, transport, blobs, manifests, referrers, and the source and sink made
of them.  Importing this package costs nothing; `imagebuild.registry.open` is the way in, and even that loads urllib3
only when the first request is made."""
