// Three tasks, an array of them, one that fails at first, and their sum.
process twice {
    cpus 1
    memory '512 MB'
    time '5 min'
    input: val number
    output: path 'part'
    script: "expr $number '*' 2 > part"
}

process thrice {
    array 3
    memory '512 MB'
    time '5 min'
    input: val number
    output: path 'part'
    script: "expr $number '*' 3 > part"
}

process later {
    memory '512 MB'
    time '5 min'
    errorStrategy 'retry'
    maxRetries 1
    output: path 'part'
    script: "test $task.attempt = 2 && echo 12 > part"
}

process total {
    memory '512 MB'
    time '5 min'
    input: path 'part?'
    output: stdout
    script: "awk '{ total += \$1 } END { print total }' part*"
}

workflow {
    numbers = Channel.of(1, 2, 3)
    twice(numbers).mix(thrice(numbers), later()).collect() | total | view { "total=" + it.trim() }
}
