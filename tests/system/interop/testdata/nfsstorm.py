"""Creates, links, renames and removes files in a directory at random, until a file exists.

Arguments: the directory, the file, and a seed. The server is killed meanwhile: a call that it had
executed is then repeated, and may fail because it was executed. Prints what is to be there at the
end as JSON: names with contents of files, targets of links, or null for directories.
"""
import errno, json, os, random, sys, time

top, end, seed = sys.argv[1:]
r = random.Random(int(seed))
model, repeated, broken, slowest, calls = {}, [], [], 0, 0


def there(name):
    """What has a name: None, or a tuple whose second member is as in the model."""
    p = top + '/' + name
    try:
        if os.path.islink(p):
            return ('link', os.readlink(p))
        if os.path.isdir(p):
            return ('directory', None)
        with open(p) as f:
            return ('file', f.read())
    except FileNotFoundError:
        return None


def call(f, may, after):
    """Makes a call that is to succeed, or, if it was executed before, to fail with an errno."""
    global slowest, calls
    calls += 1
    began = time.monotonic()
    try:
        f()
    except OSError as e:
        got = errno.errorcode[e.errno]
        state = {n: there(n) for n in after}
        if got == may and state == after:
            repeated.append(got)
        else:
            broken.append('%s after %d calls: %s, and %s instead of %s' % (got, calls, e, state, after))
    slowest = max(slowest, time.monotonic() - began)
    for n, what in after.items():
        if what is None:
            model.pop(n, None)
        else:
            model[n] = what


def create(p, text):
    # This one is never to fail: the server knows its own file by the verifier.
    fd = os.open(p, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


while not os.path.exists(end) and not broken:
    free = [n for n in map(str, range(20)) if n not in model]
    files = [n for n in model if model[n][0] == 'file']
    a = r.choice(free) if free else None
    p = top + '/' + a if a else None
    what = r.randrange(8)
    if what == 0 and a:
        text = 'text %d' % calls
        call(lambda: create(p, text), None, {a: ('file', text)})
    elif what == 1 and a:
        call(lambda: os.mkdir(p), 'EEXIST', {a: ('directory', None)})
    elif what == 2 and a:
        call(lambda: os.symlink('to %d' % calls, p), 'EEXIST', {a: ('link', 'to %d' % (calls + 1))})
    elif what == 3 and a and files:
        b = r.choice(files)
        call(lambda: os.link(top + '/' + b, p), 'EEXIST', {a: model[b]})
    elif what == 4 and a and model:
        b = r.choice(sorted(model))
        call(lambda: os.rename(top + '/' + b, p), 'ENOENT', {a: model[b], b: None})
    elif what == 5 and len(files) > 1:
        a, b = r.sample(sorted(files), 2)
        if os.path.samefile(top + '/' + a, top + '/' + b):
            continue  # nothing happens then
        call(lambda: os.rename(top + '/' + a, top + '/' + b), 'ENOENT', {b: model[a], a: None})
    elif what > 5 and model:
        b = r.choice(sorted(model))
        call(lambda: (os.rmdir if model[b][0] == 'directory' else os.unlink)(top + '/' + b), 'ENOENT', {b: None})
for n in map(str, range(20)):
    if there(n) != model.get(n):
        broken.append('at the end %s is %s instead of %s' % (n, there(n), model.get(n)))
print(json.dumps({'calls': calls, 'repeated': repeated, 'broken': broken, 'slowest': slowest,
                  'model': {n: m[1] for n, m in model.items()}}))
