// Package containers tests the devices of `softrnic cdi`, and the container image, in containers of
// podman.
package containers
