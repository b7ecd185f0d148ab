package cdi

import (
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"

	runtime "tags.cncf.io/container-device-interface/pkg/cdi"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/softrnic/softrnic/cmd/internal/cli"
	"github.com/softrnic/softrnic/cmd/internal/dropin"
)

// problems are sentences that say what is wrong.
type problems []string

func (p *problems) add(format string, args ...any) { *p = append(*p, fmt.Sprintf(format, args...)) }

// check prints what is wrong with the specifications, the files that they name, and the root
// directory of --root.
func (c *Command) check(e *cli.Env) error {
	var found problems
	devices := checkSpecs(c.Dirs, &found)
	if c.Output != "" && !slices.Contains(c.Dirs, filepath.Dir(c.Output)) {
		found.add("%s is not in a directory that runtimes read: %s. Write it there, or name its directory by --dir and in the "+
			"configuration of the runtime.", c.Output, strings.Join(c.Dirs, ", "))
	}
	checkRuntimes(machine, c.Dirs, &found)
	if c.Root != "" {
		libraries, _, err := dropin.FindInstall(c.Libs)
		if err == nil {
			err = checkRoot(c.Root, libraries, &found)
		}
		if err != nil {
			return err
		}
	}
	w := e.Text()
	for _, text := range found {
		fmt.Fprintln(w, text)
	}
	if len(found) > 0 {
		return cli.ExitStatus(cli.ExitFailed)
	}
	fmt.Fprintf(w, "Nothing is wrong with %s.\n", strings.Join(devices, ", "))
	return nil
}

// checkSpecs checks the specifications in the directories, and returns the names of their devices.
func checkSpecs(dirs []string, found *problems) (devices []string) {
	cache, err := runtime.NewCache(runtime.WithSpecDirs(dirs...), runtime.WithAutoRefresh(false))
	if err != nil {
		found.add("The specifications in %s cannot be read: %v.", strings.Join(dirs, ", "), err)
		return nil
	}
	refused := false
	failed := cache.GetErrors()
	for _, file := range slices.Sorted(maps.Keys(failed)) {
		// Those of other vendors are no concern of this command.
		if text, err := os.ReadFile(file); err != nil || strings.Contains(string(text), Kind) {
			reason := strings.Join(strings.Fields(errors.Join(failed[file]...).Error()), " ")
			found.add("Runtimes refuse %s: %s.", file, reason)
			refused = true
		}
	}
	vendor, class, _ := strings.Cut(Kind, "/")
	for _, s := range cache.GetVendorSpecs(vendor) {
		if s.GetClass() != class {
			continue
		}
		checkSpec(s.GetPath(), s.Spec, found)
		for _, d := range s.Devices {
			devices = append(devices, Kind+"="+d.Name)
		}
	}
	if devices == nil && !refused {
		found.add("No file in %s has a device %s: softrnic cdi --output %s writes one.", strings.Join(dirs, " or "), Kind,
			filepath.Join(dirs[0], "softrnic.json"))
	}
	return devices
}

// checkSpec checks a specification of this kind.
func checkSpec(file string, s *specs.Spec, found *problems) {
	mounted := map[string]string{}
	for _, m := range s.ContainerEdits.Mounts {
		mounted[m.ContainerPath] = m.HostPath
	}
	libraries, command := mounted[dropin.ContainerLibraries], mounted[dropin.ContainerCommand]
	want := CommonEdits(Settings{Libraries: libraries, Command: command})
	if !reflect.DeepEqual(s.ContainerEdits.Mounts, want.Mounts) {
		found.add("%s is of another version of softrnic: its mounts differ. Write it again.", file)
	} else {
		if err := Complete(libraries); err != nil {
			found.add("%s names the libraries in %s: %v.", file, libraries, err)
		}
		if err := static(command); err != nil {
			found.add("%s names the command %s: %v.", file, command, err)
		}
	}
	for _, d := range s.Devices {
		edits := specs.ContainerEdits{Env: slices.Concat(s.ContainerEdits.Env, d.ContainerEdits.Env)}
		if err := Validate(edits); err != nil {
			found.add("%s: the libraries refuse device %s: %v.", file, d.Name, err)
		}
	}
}

// static returns an error unless a file is a program that needs no libraries.
func static(file string) error {
	f, err := elf.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	if libs, err := f.ImportedLibraries(); err != nil || len(libs) != 0 {
		return fmt.Errorf("it needs %s, which the container may lack: build it with CGO_ENABLED=0", strings.Join(libs, " and "))
	}
	return nil
}

// machine is the root directory with the configuration of runtimes. It is a variable for tests.
var machine = "/"

// checkRuntimes checks the configuration of the container runtimes of this machine, if any.
func checkRuntimes(root string, dirs []string, found *problems) {
	for _, r := range []struct{ file, off string }{
		{"etc/containerd/config.toml", "enable_cdi=false"}, {"etc/docker/daemon.json", `"cdi":false`}, {"etc/crio/crio.conf", ""},
	} {
		file := filepath.Join(root, r.file)
		text, err := os.ReadFile(file)
		if err != nil {
			continue // not there, or not readable by this user
		}
		// Both formats have lists in brackets. TOML has strings in single quotes too.
		plain := strings.Join(strings.Fields(withoutComments(string(text))), "")
		if r.off != "" && strings.Contains(plain, r.off) {
			found.add("%s turns CDI off: %s.", file, r.off)
		}
		for _, name := range []string{"cdi_spec_dirs=[", `"cdi-spec-dirs":[`} {
			_, after, ok := strings.Cut(plain, name)
			if !ok {
				continue
			}
			list, _, _ := strings.Cut(after, "]")
			if !slices.ContainsFunc(dirs, func(d string) bool { return strings.Contains(list, `"`+d+`"`) || strings.Contains(list, `'`+d+`'`) }) {
				found.add("%s reads other directories than %s: %s.", file, strings.Join(dirs, " and "), list)
			}
		}
	}
	checkContainerd(root, found)
}

// containerdVersion is in what containerd --version prints. Distributions change what is around it.
var containerdVersion = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`\sv?(1\.\d+)\.\d+`) })

// checkContainerd checks whether pods get CDI devices from containerd 1, which has CDI off by
// default. This concerns the kubelet only: Docker and podman give containers their devices
// themselves.
func checkContainerd(root string, found *problems) {
	if _, err := os.Stat(filepath.Join(root, "var/lib/kubelet")); err != nil {
		return
	}
	plain := ""
	main := filepath.Join(root, "etc/containerd/config.toml")
	files, _ := filepath.Glob(filepath.Join(root, "etc/containerd/conf.d/*.toml")) // the pattern is valid
	for _, file := range append(files, main) {
		switch text, err := os.ReadFile(file); {
		case err == nil:
			plain += strings.Join(strings.Fields(withoutComments(string(text))), "") + "\n"
		case !errors.Is(err, fs.ErrNotExist):
			return // not readable by this user
		}
	}
	if strings.Contains(plain, "enable_cdi=") || strings.Contains(plain, `disabled_plugins=["cri"`) {
		return
	}
	for _, dir := range []string{"usr/local/bin", "usr/bin"} {
		out, err := exec.Command(filepath.Join(root, dir, "containerd"), "--version").Output()
		if err != nil {
			continue // not there
		}
		if v := containerdVersion().FindSubmatch(out); v != nil {
			found.add("containerd %s gives pods no CDI devices by default: set enable_cdi = true in %s, with version 1.7 or later.", v[1], main)
		}
		return
	}
}

// withoutComments removes the lines of a configuration that are comments.
func withoutComments(text string) (rest string) {
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(strings.TrimSpace(line), "#") {
			rest += line
		}
	}
	return rest
}

// checkRoot checks whether programs in the root file system of an image can load the libraries.
func checkRoot(root, libraries string, found *problems) error {
	r, err := os.OpenRoot(root)
	if err != nil {
		return err
	}
	defer r.Close()
	need, processor, err := needsOf(libraries)
	if err != nil {
		return err
	}
	file, version, others := glibcOf(r, processor)
	switch {
	case version != "":
		if older(version, need) {
			found.add("%s has glibc %s (%s): the libraries need %s or later. No program there starts with a device.", root, version,
				file, need)
		}
	case others != "":
		found.add("%s is made for another processor (%s) than the libraries (%s): its programs do not see the devices.", root, others,
			processor)
	default:
		if musl, err := fs.Glob(r.FS(), "lib/ld-musl-*.so.1"); err == nil && len(musl) > 0 {
			found.add("%s has musl (%s) and no glibc: its programs do not see the devices.", root, musl[0])
		} else {
			found.add("%s has no glibc: its programs do not see the devices.", root)
		}
	}
	if text, err := r.ReadFile(strings.TrimPrefix(dropin.ContainerPreload, "/")); err == nil && len(text) > 0 {
		found.add("%s has %s itself, which a device hides: it preloads %s.", root, dropin.ContainerPreload,
			strings.Join(strings.Fields(string(text)), " and "))
	}
	return nil
}

// glibcPrefix is the beginning of the versions of glibc's symbols.
const glibcPrefix = "GLIBC_"

// needsOf returns the version of glibc that the libraries need, and their processor.
func needsOf(libraries string) (version string, machine elf.Machine, err error) {
	for _, lib := range append([]string{dropin.SysfsLibrary}, dropin.Libraries...) {
		f, err := elf.Open(filepath.Join(libraries, lib))
		if err != nil {
			return "", 0, err
		}
		needs, err := f.DynamicVersionNeeds()
		machine = f.Machine
		if err := errors.Join(err, f.Close()); err != nil {
			return "", 0, fmt.Errorf("%s: %w", lib, err)
		}
		for _, n := range needs {
			for _, dep := range n.Needs {
				if v, ok := strings.CutPrefix(dep.Dep, glibcPrefix); ok && older(version, v) {
					version = v
				}
			}
		}
	}
	return version, machine, nil
}

// glibcOf returns the glibc for a processor in a root file system, and its version. If there is
// none, it returns the processor of another glibc.
func glibcOf(root *os.Root, machine elf.Machine) (file, version, others string) {
	for _, pattern := range []string{"lib/*-linux-gnu", "usr/lib/*-linux-gnu", "lib64", "usr/lib64", "lib", "usr/lib"} {
		files, err := fs.Glob(root.FS(), pattern+"/libc.so.6")
		if err != nil {
			continue
		}
		for _, name := range files {
			f, err := root.Open(name)
			if err != nil {
				continue
			}
			v, m := glibcVersion(f)
			_ = f.Close()
			switch {
			case v == "":
			case m == machine:
				return name, v, ""
			default:
				others = m.String()
			}
		}
	}
	return "", "", others
}

// glibcRelease is in the text that glibc prints about itself.
var glibcRelease = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`GNU C Library .* release version (\d+\.\d+)`) })

// glibcVersion returns the release of a C library, or "" if it is not glibc.
func glibcVersion(file *os.File) (version string, machine elf.Machine) {
	f, err := elf.NewFile(file)
	if err != nil {
		return "", 0
	}
	constants := f.Section(".rodata")
	if constants == nil {
		return "", 0
	}
	text, err := constants.Data()
	if err != nil {
		return "", 0
	}
	if match := glibcRelease().FindSubmatch(text); match != nil {
		version = string(match[1])
	}
	return version, f.Machine
}

// older reports whether a version of glibc is older than another. Names such as PRIVATE are no
// versions, and older than all.
func older(a, b string) bool {
	return slices.Compare(numbers(a), numbers(b)) < 0
}

func numbers(version string) (list []int) {
	for part := range strings.SplitSeq(version, ".") {
		var n int
		if _, err := fmt.Sscanf(part, "%d", &n); err != nil {
			return nil
		}
		list = append(list, n)
	}
	return list
}
