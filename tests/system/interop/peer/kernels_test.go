//go:build linux

package peer

import (
	"slices"
	"strings"
	"testing"
)

// TestIdentify: a kernel or rdma-core newer than the table is taken for the newest row, and
// reported.
func TestIdentify(t *testing.T) {
	if !slices.IsSortedFunc(kernels, func(a, b Kernel) int { return a.Linux.compare(b.Linux) }) {
		t.Error("the table of kernels is not in order")
	}
	for _, c := range []struct {
		packages, linux, versions string
		news                      []string
	}{
		{"libibverbs1_44.0-2\nlinux-image-6.1.0-50-amd64_6.1.176-1\n", "6.1", "Linux 6.1.176-1, rdma-core 44.0-2", nil},
		{"libibverbs1_50.0-2\nlinux-image-6.8.0-50-amd64_6.8.1-1\n", "6.1", "Linux 6.8.1-1, rdma-core 50.0-2", nil},
		{"libibverbs1_56.1-1\nlinux-image-6.12.117+deb13-amd64_6.12.117-1\n", "6.12", "Linux 6.12.117-1, rdma-core 56.1-1", nil},
		{"libibverbs1_65.0-1.1\nlinux-image-7.2.13+deb14-amd64_7.2.13-1\n", "7.2", "Linux 7.2.13-1, rdma-core 65.0-1.1", nil},
		{"libibverbs1_99.0-1\nlinux-image-99.3+deb15-amd64_99.3-1\n", kernels[len(kernels)-1].Linux.String(), "Linux 99.3-1, rdma-core 99.0-1",
			[]string{"Linux 99.3-1, newer than", "rdma-core 99.0-1, newer than"}},
	} {
		row, versions, news, err := identify(c.packages)
		if err != nil || row.Linux.String() != c.linux || versions != c.versions || !slices.EqualFunc(news, c.news, strings.HasPrefix) ||
			row.Newer != (len(c.news) > 0) {
			t.Errorf("%q is Linux %v (newer: %v), %q, with news %q and error %v", c.packages, row.Linux, row.Newer, versions, news, err)
		}
	}
	for _, packages := range []string{"", "libibverbs1_44.0-2\n", "libibverbs1_44.0-2\nlinux-image-5.10_5.10.1-1\n"} {
		if _, _, _, err := identify(packages); err == nil {
			t.Errorf("%q: no error", packages)
		}
	}
}
