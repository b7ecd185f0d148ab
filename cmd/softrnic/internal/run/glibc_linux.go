package run

import (
	"debug/elf"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"strings"

	"github.com/softrnic/softrnic/cmd/internal/dropin"
)

// refuseMusl returns an error if the program's dynamic linker is musl's, which cannot load the
// libraries. musl's own error would only name a missing symbol. Scripts and unreadable programs are
// not checked.
func refuseMusl(program string) error {
	file, err := exec.LookPath(program)
	if err != nil {
		return nil // exec reports the error
	}
	if linker := linkerOf(file); strings.HasPrefix(path.Base(linker), "ld-musl-") {
		return fmt.Errorf("%s is built for musl (%s): the drop-in libraries need glibc %s or later", file, linker, dropin.OldestGlibc)
	}
	return nil
}

// linkerOf returns the dynamic linker of a program, or "" for static programs, scripts, and
// unreadable files.
func linkerOf(file string) string {
	f, err := elf.Open(file)
	if err != nil {
		return ""
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			name, err := io.ReadAll(io.LimitReader(p.Open(), 4096))
			if err != nil {
				return ""
			}
			return strings.TrimRight(string(name), "\x00")
		}
	}
	return ""
}

// missingProviders returns the directories of the vendors' libraries that the dynamic linker does
// not find.
func missingProviders(libs string) (dirs []string) {
	missing, sure := missingInCache(linkerCache, dropin.Providers)
	if !sure {
		missing = missingForLinker(dropin.Providers)
	}
	for _, lib := range missing {
		dirs = append(dirs, dropin.ProviderDir(libs, lib))
	}
	return dirs
}

// missingForLinker asks the dynamic linker which of some libraries it does not find. This takes as
// long as the start of another program.
func missingForLinker(libs []string) (missing []string) {
	const program = "/bin/sh"
	linker := linkerOf(program)
	if linker == "" {
		return nil // not a system with shared libraries
	}
	// The linker lists the libraries that it would preload, and leaves out those that it lacks.
	cmd := exec.Command(linker, "--list", program)
	cmd.Env = append(os.Environ(), "LD_PRELOAD="+strings.Join(libs, " "))
	list, err := cmd.Output()
	if err != nil {
		return nil
	}
	for _, lib := range libs {
		if !strings.Contains(string(list), "\t"+lib+" => ") {
			missing = append(missing, lib)
		}
	}
	return missing
}
