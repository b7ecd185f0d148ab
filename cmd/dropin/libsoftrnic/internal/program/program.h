int run_threads(int n);
void catch_faults(int kind, int mask);
int read_faults(void *p);
int caught(void);
