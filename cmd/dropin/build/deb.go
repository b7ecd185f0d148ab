package main

import (
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"time"

	"github.com/softrnic/softrnic/cmd/internal/dropin"
)

// nfpm is the tool that makes Debian packages. It is not part of this module: go run downloads it.
const nfpm = "github.com/goreleaser/nfpm/v2/cmd/nfpm@v2.43.4"

// hubUnit is the unit of systemd for the hub of the machine.
//
//go:embed softrnic-hub.service
var hubUnit []byte

// debianPackage builds the same files as install, and makes a Debian package that installs them
// below /usr, with a unit of systemd for the hub of the machine.
func debianPackage(file string, engine bool) error {
	file, err := filepath.Abs(file)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "softrnic-deb")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := install(filepath.Join(dir, "usr"), engine); err != nil {
		return err
	}
	units := filepath.Join(dir, "usr", "lib", "systemd", "system")
	err = os.MkdirAll(units, 0o755)
	if err == nil {
		err = os.WriteFile(filepath.Join(units, "softrnic-hub.service"), hubUnit, 0o644)
	}
	if err != nil {
		return err
	}
	root, err := moduleRoot()
	if err != nil {
		return err
	}
	config := filepath.Join(dir, "nfpm.yaml")
	version, when := packageVersion(root)
	if err := os.WriteFile(config, []byte(packageConfig(filepath.Join(dir, "usr"), version, when)), 0o666); err != nil {
		return err
	}
	cmd := exec.Command("go", "run", nfpm, "package", "--config", config, "--packager", "deb", "--target", file)
	// nfpm is built outside the module, because go.mod does not list it, and without C.
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "GOFLAGS=-mod=mod", "CGO_ENABLED=0")
	return run(cmd)
}

// packageConfig returns the configuration of nfpm. The libraries depend on the C library only.
// Programs have their own dependencies on the other parts of libibverbs and librdmacm.
func packageConfig(tree, version string, when time.Time) string {
	return fmt.Sprintf(`name: softrnic
arch: %s
platform: linux
version: %q
version_schema: none
mtime: %s
umask: 0o022
section: net
priority: optional
maintainer: SoftRNIC <softrnic@localhost>
description: |-
  Software RDMA network card in user space
  RoCEv2 and iWARP without a kernel module, a device or privileges: "softrnic run -- PROGRAM" runs programs
  that were written for libibverbs and librdmacm.
license: Apache-2.0
depends:
  - libc6 (>= %s)
suggests:
  - ibverbs-utils
  - rdmacm-utils
  - perftest
contents:
  - src: %s/
    dst: /usr
    type: tree
`, runtime.GOARCH, version, when.UTC().Format(time.RFC3339), dropin.OldestGlibc, tree)
}

// packageVersion returns the version of a package built from a commit, and the time of its files:
// 0, with the time and hash of the commit. It is lower than that of any release, and later commits
// have higher versions.
func packageVersion(root string) (version string, when time.Time) {
	cmd := exec.Command("git", "log", "-1", "--format=%ct %H")
	cmd.Dir = root
	out, err := cmd.Output()
	var seconds int64
	var hash string
	if _, failed := fmt.Sscan(string(out), &seconds, &hash); err != nil || failed != nil {
		return "0", time.Unix(0, 0) // not built from a repository
	}
	when = time.Unix(seconds, 0).UTC()
	return fmt.Sprintf("0~git%s.%.8s", when.Format("20060102150405"), hash), when
}
