// Command build builds the drop-in libraries: libsoftrnic.so, the engine, and libibverbs.so.1 and
// librdmacm.so.1 in front of it. It needs gcc and the headers of libibverbs and librdmacm (Debian:
// libibverbs-dev, librdmacm-dev).
//
//	go run ./cmd/dropin/build -o DIR
//
// With -prefix it also builds the command softrnic, and installs all of it, with files for
// pkg-config:
//
//	go run ./cmd/dropin/build -prefix $HOME/.local
//	~/.local/bin/softrnic run -- ibv_devinfo
//
// It compiles with the headers of any rdma-core from 44 to 65, and the libraries serve programs
// that were compiled with any other. With -headers it uses those of a directory:
//
//	go run ./cmd/dropin/build -o DIR -headers rdma-core/build/include
//
// With -deb it makes a Debian package of the same files. go run downloads nfpm, the tool for that.
// It has the same bytes whenever it is built from the same commit and tags, with the same Go and
// gcc, in any directory.
//
//	go run ./cmd/dropin/build -deb softrnic.deb
//
// With -image it makes a container image of the same files and nothing else, which is reproducible
// too. podman load, docker load and ctr images import read it. With -from it packs a directory
// instead.
//
//	go run ./cmd/dropin/build -image softrnic.tar
//	go run ./cmd/dropin/build -image other.tar -from DIR -name localhost/other:latest -entrypoint /bin/other
package main

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/softrnic/softrnic/cmd/internal/dropin"
	"github.com/softrnic/softrnic/cmd/internal/namespace"
)

// sanitize is a sanitizer of gcc, or empty.
var sanitize string

// headers is a directory with the headers of rdma-core, or empty for those of the system.
var headers string

func main() {
	out := flag.String("o", "lib", "the directory for the libraries, which is made if it is not there")
	prefix := flag.String("prefix", "", "install the libraries and the command softrnic below this directory, in lib/softrnic and bin; "+
		"-o then does not count; with -image, a directory of the image, by default /usr")
	deb := flag.String("deb", "",
		"make a Debian package with the libraries and the command softrnic, this file; -o and -prefix then do not count")
	archive := flag.String("image", "",
		"make a container image with the libraries and the command softrnic, this file; -o then does not count")
	name := flag.String("name", "localhost/softrnic:latest", "the name of the image")
	from := flag.String("from", "", "pack this directory, as the root directory of the image, instead of building SoftRNIC")
	entry := flag.String("entrypoint", "", "the entry point of the image: a program and arguments, separated by spaces; by default softrnic")
	engine := flag.Bool("engine", true, "build the engine, which takes the longest")
	flag.StringVar(&headers, "headers", "", "compile with the headers of rdma-core in this directory, instead of the system's")
	flag.StringVar(&sanitize, "sanitize", "",
		"build the libraries of C with this sanitizer of gcc's, address or thread, and flags of gcc's after a space, for tests")
	flag.Parse()
	var err error
	switch {
	case flag.NArg() > 0:
		err = fmt.Errorf("%q: there are flags only", flag.Arg(0))
	case *deb != "":
		err = debianPackage(*deb, *engine)
	case *archive != "":
		err = containerImage(*archive, *from, newImage(*name, *prefix, *entry), *engine)
	case *prefix != "":
		err = install(*prefix, *engine)
	default:
		err = build(*out, *engine)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "build:", err)
		os.Exit(1)
	}
}

func build(out string, engine bool) error {
	if err := prerequisites(includes()...); err != nil {
		return err
	}
	root, err := moduleRoot()
	if err != nil {
		return err
	}
	if out, err = filepath.Abs(out); err != nil {
		return err
	}
	if err := os.MkdirAll(out, 0o777); err != nil {
		return err
	}
	if engine {
		temp, err := os.MkdirTemp("", "softrnic-build")
		if err != nil {
			return err
		}
		defer os.RemoveAll(temp)
		goroot, err := goRoot(root, temp)
		if err != nil {
			return err
		}
		changes, err := overlay(goroot, temp)
		if err != nil {
			return err
		}
		cmd := exec.Command(filepath.Join(goroot, "bin", "go"), "build", profile, "-overlay", changes, "-trimpath", "-buildmode=c-shared",
			"-ldflags=-s -w -X=runtime.godebugDefault=asyncpreemptoff=1,gcshrinkstackoff=1 "+
				"-extldflags=-Wl,-soname,libsoftrnic.so,--wrap=pthread_create",
			"-o", filepath.Join(out, "libsoftrnic.so"), "./cmd/dropin/libsoftrnic")
		cmd.Dir, cmd.Env = root, append(os.Environ(), "CGO_ENABLED=1", "GOROOT="+goroot)
		if err := run(cmd); err != nil {
			return err
		}
		// The header that Go writes for its exports is not needed.
		if err := os.Remove(filepath.Join(out, "libsoftrnic.h")); err != nil {
			return err
		}
	}
	if err := front(root, out, "libibverbs", "libibverbs.so.1"); err != nil {
		return err
	}
	if err := front(root, out, "librdmacm", "librdmacm.so.1", filepath.Join(out, "libibverbs.so.1")); err != nil {
		return err
	}
	sysfs := filepath.Join(root, "cmd", "dropin", "libsysfs")
	if err := shared(out, dropin.SysfsLibrary, filepath.Join(sysfs, "paths.c"), filepath.Join(sysfs, "tree.c"),
		filepath.Join(sysfs, "netlink.c"), "-ldl"); err != nil {
		return err
	}
	unwind := filepath.Join(root, "cmd", "dropin", "libsoftrnic", "unwind", "unwind.c")
	sockets := filepath.Join(root, "cmd", "dropin", "libsockets")
	if err := shared(out, dropin.SocketsLibrary, filepath.Join(sockets, "preload.c"), filepath.Join(sockets, "direct.c"), unwind,
		"-ldl"); err != nil {
		return err
	}
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", filepath.Join(out, namespace.Program), "./cmd/dropin/namespace")
	cmd.Dir, cmd.Env = root, append(os.Environ(), "CGO_ENABLED=0")
	if err := run(cmd); err != nil {
		return err
	}
	for _, lib := range dropin.Providers {
		if err := provider(root, out, lib); err != nil {
			return err
		}
	}
	for _, lib := range dropin.Libraries[1:] {
		if err := unversioned(out, lib); err != nil {
			return err
		}
	}
	if err := os.WriteFile(filepath.Join(out, dropin.PreloadFile), []byte(dropin.Preload()), 0o666); err != nil {
		return err
	}
	return linkNames(out)
}

// unversioned builds a library without functions of its own. Its name is that of a library in out,
// without the version, and it needs that library. A preloaded library is found by its name only, so
// that a symbolic link does not have this effect.
func unversioned(out, lib string) error {
	dir := filepath.Join(out, dropin.NamesDir)
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	return shared(dir, strings.TrimSuffix(lib, ".1"), "-nostdlib", "-Wl,--no-as-needed", "-Wl,-rpath,$ORIGIN/..",
		"-Wl,--enable-new-dtags", filepath.Join(out, lib), "-Wl,-rpath-link,"+out)
}

// provider builds a stand-in for a vendor's library. Its source and version script are in
// cmd/dropin/libproviders.
func provider(root, out, soname string) error {
	dir := dropin.ProviderDir(out, soname)
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	source := filepath.Join(root, "cmd", "dropin", "libproviders", filepath.Base(dir))
	return shared(dir, soname, "-Wl,--version-script="+source+".map", source+".c")
}

// front builds a C library from its sources and version script in cmd/dropin/NAME.
func front(root, out, name, soname string, libs ...string) error {
	dir := filepath.Join(root, "cmd", "dropin", name)
	sources, err := filepath.Glob(filepath.Join(dir, "*.c"))
	if err != nil {
		return err
	}
	args := slices.Concat([]string{"-Wl,--version-script=" + filepath.Join(dir, name+".map"), "-Wl,-z,nodelete",
		"-Wl,-Bsymbolic-functions"}, sources, libs,
		[]string{filepath.Join(root, "cmd", "dropin", "libsoftrnic", "unwind", "unwind.c"), "-ldl", "-lpthread"})
	return shared(out, soname, args...)
}

// shared compiles C to a library that exports its PUBLIC symbols. With -fexceptions, cancelled
// threads run cleanup handlers.
func shared(out, soname string, args ...string) error {
	flags := []string{
		"-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-fexceptions", "-fvisibility=hidden", "-shared", "-Wl,-soname," + soname,
		"-o", filepath.Join(out, soname),
	}
	if sanitize == "" {
		flags = append(flags, "-Wl,-z,defs")
	} else { // the program has the sanitizer's functions
		flags = append(flags, "-g", "-fno-omit-frame-pointer")
		flags = append(flags, strings.Fields("-fsanitize="+sanitize)...)
	}
	return run(exec.Command("gcc", slices.Concat(flags, includes(), args)...))
}

// includes returns the flags of gcc that select the headers.
func includes() []string {
	if headers == "" {
		return nil
	}
	return []string{"-isystem", headers}
}

func run(cmd *exec.Cmd) error {
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w", cmd.Path, err)
	}
	return nil
}

// profile is the compiler's profile of the fast paths (tests/bench/profile.sh). It is not named
// default.pgo, because go run, go test and go vet would then compile all dependencies once more.
const profile = "-pgo=cmd/softrnic/release.pgo"

// moduleRoot returns the directory of go.mod.
func moduleRoot() (string, error) {
	mod, err := exec.Command("go", "env", "GOMOD").Output()
	if err != nil {
		return "", err
	}
	return filepath.Dir(string(mod)), nil
}
