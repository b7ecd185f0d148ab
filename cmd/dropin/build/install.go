package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/softrnic/softrnic/cmd/internal/dropin"
)

// install builds the libraries and the command below prefix:
//
//	bin/softrnic
//	lib/softrnic/lib*.so.*      found by softrnic run, and by LD_LIBRARY_PATH
//	lib/softrnic/lib*/          vendors' libraries, for machines that lack them
//	lib/softrnic/lib*.so        for linkers and programs that load them by this name
//	lib/softrnic/names/         the same for containers, with ld.so.preload
//	lib/softrnic/softrnic-namespace  the program of softrnic run in a mount namespace
//	lib/softrnic/pkgconfig/     for PKG_CONFIG_PATH; the headers are the system's
func install(prefix string, engine bool) error {
	prefix, err := filepath.Abs(prefix)
	if err != nil {
		return err
	}
	libs := filepath.Join(prefix, dropin.LibDir)
	if err := build(libs, engine); err != nil {
		return err
	}
	root, err := moduleRoot()
	if err != nil {
		return err
	}
	cmd := exec.Command("go", "build", profile, "-trimpath", "-ldflags=-s -w", "-o", filepath.Join(prefix, "bin", "softrnic"),
		"./cmd/softrnic")
	cmd.Dir, cmd.Env = root, append(os.Environ(), "CGO_ENABLED=0") // a container may have another C library
	if err := run(cmd); err != nil {
		return err
	}
	return writePkgConfig(libs)
}

// linkNames adds names without a version, for linkers and for programs that load libibverbs.so.
// Without these names, they would find the system's libraries if its development package is
// installed.
func linkNames(libs string) error {
	for _, lib := range dropin.Libraries[1:] {
		link := filepath.Join(libs, strings.TrimSuffix(lib, ".1"))
		if err := os.Remove(link); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := os.Symlink(lib, link); err != nil {
			return err
		}
	}
	return nil
}

// The versions in the files for pkg-config. The libraries have all functions of the rdma-core with
// these versions.
const (
	verbsVersion = "1.14.44.0"
	cmVersion    = "1.3.44.0"
)

// writePkgConfig writes the files for pkg-config. They name the libraries relative to their own
// directory, because a package is installed elsewhere than where it is built.
func writePkgConfig(libs string) error {
	dir := filepath.Join(libs, "pkgconfig")
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	for _, p := range []struct{ name, description, version, requires, flag string }{
		{"libibverbs", "RDMA verbs of SoftRNIC", verbsVersion, "", "-libverbs"},
		{"librdmacm", "RDMA connections of SoftRNIC", cmVersion, "Requires.private: libibverbs\n", "-lrdmacm"},
	} {
		text := fmt.Sprintf("libdir=${pcfiledir}/..\n\nName: %s\nDescription: %s\nVersion: %s\n%s"+
			"Libs: -L${libdir} -Wl,-rpath,${libdir} %s\n", p.name, p.description, p.version, p.requires, p.flag)
		if err := os.WriteFile(filepath.Join(dir, p.name+".pc"), []byte(text), 0o666); err != nil {
			return err
		}
	}
	return nil
}
