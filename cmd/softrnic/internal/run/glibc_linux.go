package run

import (
	"debug/elf"
	"fmt"
	"io"
	"os/exec"
	"path"
	"strings"

	"github.com/softrnic/softrnic/cmd/internal/dropin"
)

// refuseMusl returns an error if the program's dynamic linker is musl's, which cannot load the libraries: it would name
// a missing symbol, and not the reason. Scripts and programs that cannot be read are not looked into.
func refuseMusl(program string) error {
	file, err := exec.LookPath(program)
	if err != nil {
		return nil // exec says so
	}
	f, err := elf.Open(file)
	if err != nil {
		return nil
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type != elf.PT_INTERP {
			continue
		}
		name, err := io.ReadAll(io.LimitReader(p.Open(), 4096))
		if err != nil {
			return nil
		}
		if linker := strings.TrimRight(string(name), "\x00"); strings.HasPrefix(path.Base(linker), "ld-musl-") {
			return fmt.Errorf("%s is built for musl (%s): the drop-in libraries need glibc %s or later", file, linker, dropin.OldestGlibc)
		}
	}
	return nil
}
