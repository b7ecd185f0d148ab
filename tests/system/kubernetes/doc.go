// Package kubernetes tests softrnic kubernetes in a cluster of one node: etcd, API server,
// scheduler, controller manager and kubelet in directory cluster, a module of its own, and
// containerd, built from the Go module proxy. It is a part of the long run, as the first build
// takes a quarter of an hour.
//
// The cluster is in namespaces of its own for mounts, network and processes, and in a cgroup of its
// own. Nothing is left when the test ends.
package kubernetes
