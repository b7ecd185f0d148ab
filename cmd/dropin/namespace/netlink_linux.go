package main

import (
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/cmd/internal/namespace"
)

// coverNetlinkPrograms puts scripts in the places of programs that ask the kernel about RDMA
// devices by netlink. A script runs the program with the preloaded library, whose requests of
// netlink are answered. Other programs get no library: they work without it, and some do not work
// with one, such as those with gcc's AddressSanitizer.
func coverNetlinkPrograms(library, command, program string) error {
	programs := netlinkPrograms(program)
	if len(programs) == 0 {
		return nil
	}
	dir, err := os.MkdirTemp("/"+namespace.Covered, "") // a softrnic run in another covers the other's scripts
	if err != nil {
		return err
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		return err
	}
	for i, program := range programs {
		in := filepath.Join(dir, strconv.Itoa(i))
		original, script := filepath.Join(in, filepath.Base(program)), filepath.Join(in, "script")
		text := fmt.Sprintf("#!/bin/sh\nLD_PRELOAD=%s${LD_PRELOAD:+:$LD_PRELOAD} SOFTRNIC_SYSFS= SOFTRNIC_COMMAND=%s exec %s \"$@\"\n",
			quoted(library), quoted(command), quoted(original))
		if err := errors.Join(os.Mkdir(in, 0o755), os.WriteFile(original, nil, 0o755), os.WriteFile(script, []byte(text), 0o755)); err != nil {
			return err
		}
		if err := unix.Mount(program, original, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("bind %s: %w", program, err)
		}
		if err := unix.Mount(script, program, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("bind to %s: %w", program, err)
		}
	}
	return nil
}

// quoted returns a word of the shell.
func quoted(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// netlinkPrograms returns the files of iproute2's rdma, in PATH and in the usual directories, and
// that of the given program, if they are linked against libmnl, as rdma is.
func netlinkPrograms(program string) (files []string) {
	add := func(file string) {
		file, err := filepath.EvalSymlinks(file)
		if err != nil {
			return
		}
		info, err := os.Stat(file)
		if err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 && usesNetlink(file) && !slices.Contains(files, file) {
			files = append(files, file)
		}
	}
	usual := []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"}
	for _, dir := range append(filepath.SplitList(os.Getenv("PATH")), usual...) {
		if filepath.IsAbs(dir) {
			add(filepath.Join(dir, "rdma"))
		}
	}
	if file, err := exec.LookPath(program); err == nil {
		if file, err = filepath.Abs(file); err == nil {
			add(file)
		}
	}
	return files
}

// usesNetlink reports whether a program is linked against libmnl.
func usesNetlink(file string) bool {
	f, err := elf.Open(file)
	if err != nil {
		return false // a script
	}
	defer f.Close()
	libs, _ := f.ImportedLibraries() // a static program has none
	return slices.Contains(libs, "libmnl.so.0")
}
