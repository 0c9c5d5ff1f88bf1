"""Values of the OCI image-spec 1.1 and their Docker schema 2 twins, and layouts and archives on disk."""
