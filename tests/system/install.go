package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/softrnic/softrnic/tests/system/internal/apt"
)

// packages are the Debian packages that the tests need. tests/system/interop/peer fetches those of
// the virtual machines, without installing them.
var packages = strings.Fields(`
	gcc libc6-dev libibverbs-dev librdmacm-dev
	ibverbs-utils perftest rdmacm-utils qperf python3-pyverbs
	qemu-system-x86 qemu-user-static iproute2 nftables tshark
	fio ucx-utils openmpi-bin libopenmpi-dev libfabric-bin
	infiniband-diags hwloc-nox pciutils
	tgt libiscsi-bin qemu-utils qemu-block-extra
	iperf3 netperf curl nginx-light openssh-client openssh-server postgresql redis-server socat prometheus stunnel4
`)

// packagesOfRoots are also in the root file systems of other releases: what every Debian system
// has, and what lines of the long run install on Debian 12.
var packagesOfRoots = strings.Fields("git login mount procps mpich libmpich-dev ceph-mon ceph-mgr ceph-osd ceph-common")

// differences are packages that a release has under other names, or besides.
var differences = map[string]struct {
	renamed map[string]string
	besides []string
}{
	"trixie": {renamed: map[string]string{"qemu-user-static": "qemu-user"},
		besides: strings.Fields("sockperf valkey-server valkey-tools")},
	"sid": {renamed: map[string]string{"qemu-user-static": "qemu-user"},
		besides: strings.Fields("dapl2-utils g++ libgloo-dev make python3-netifaces sockperf ucc-utils valkey-server valkey-tools")},
}

// packagesOf returns packages under the names that they have in a release.
func packagesOf(release string, packages []string) []string {
	d := differences[release]
	names := slices.Clone(packages)
	for i, p := range names {
		if n, ok := d.renamed[p]; ok {
			names[i] = n
		}
	}
	return append(names, d.besides...)
}

// missingPackages returns the packages of a release, the machine's, that are not installed.
func missingPackages(release string) (missing []string, err error) {
	if _, err := exec.LookPath("apt-get"); err != nil {
		return nil, fmt.Errorf("needs a Debian system: %w", err)
	}
	packages := packagesOf(release, packages)
	// dpkg-query fails if it does not know one of them, and still prints the others.
	out, err := exec.Command("dpkg-query", append([]string{"-W", "-f", "${db:Status-Status} ${Package}\n"}, packages...)...).Output()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return nil, err
	}
	installed := strings.Split(string(out), "\n")
	for _, p := range packages {
		if !slices.Contains(installed, "installed "+p) {
			missing = append(missing, p)
		}
	}
	return missing, nil
}

// install installs packages.
func install(missing []string) error {
	if len(missing) == 0 {
		return nil
	}
	if err := addNonFree(); err != nil {
		return err
	}
	return apt.Install(missing)
}

const (
	debianSources = "/etc/apt/sources.list.d/debian.sources"
	netperfSource = "/etc/apt/sources.list.d/softrnic-netperf.sources"
	netperfPin    = `Package: netperf
Pin: release c=non-free
Pin-Priority: 500

Package: *
Pin: release c=non-free
Pin-Priority: -1
`
)

// addNonFree makes apt-get find netperf, which is in Debian's component non-free, and nothing else
// of that component.
func addNonFree() error {
	files, err := filepath.Glob("/etc/apt/sources.list.d/*")
	if err != nil {
		return err
	}
	for _, name := range append(files, "/etc/apt/sources.list") {
		text, err := os.ReadFile(name)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		for row := range strings.Lines(string(text)) {
			if !strings.HasPrefix(row, "#") && slices.Contains(strings.Fields(row), "non-free") {
				return nil
			}
		}
	}
	text, err := os.ReadFile(debianSources)
	if err != nil {
		return err
	}
	var b strings.Builder
	for row := range strings.Lines(string(text)) {
		if strings.HasPrefix(row, "Components:") {
			row = "Components: non-free\n"
		}
		b.WriteString(row)
	}
	if err := os.WriteFile(netperfSource, []byte(b.String()), 0o644); err != nil {
		return err
	}
	return os.WriteFile("/etc/apt/preferences.d/softrnic-netperf", []byte(netperfPin), 0o644)
}
